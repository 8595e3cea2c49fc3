"""Labs: short scripts that make the engine show what it does. docs/labs.md goes through them."""
