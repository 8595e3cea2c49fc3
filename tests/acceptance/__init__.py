"""What shows that the engine works: the whole of it, for real, over models on disk."""
