"""What models write, and how the tests look at what was made of it."""

from triolet.engine.parsing import TOOL_FORMATS, AnswerParser, Delta, Function, Parsed, collect
from triolet.engine.parsing.reasoning import ReasoningParser

WEATHER = Function(
    name="get_weather",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": ["boolean", "null"]},
            "places": {"type": "array", "items": {"type": "object"}},
        },
        "required": ["city"],
    },
)
NOW = Function(name="now")
FUNCTIONS = (WEATHER, NOW)


def deltas_of(parser: AnswerParser, pieces: list[str]) -> list[Delta]:
    """All that a parser says, piece by piece."""
    return [delta for piece in pieces for delta in parser.push(piece)] + parser.finish()


def new_parser(format: str, *, reasoning: ReasoningParser | None = None, most_calls: int | None = None) -> AnswerParser:
    return AnswerParser(reasoning=reasoning, tools=TOOL_FORMATS[format].parser(FUNCTIONS, most_calls=most_calls))


def parse(format: str, text: str, *, most_calls: int | None = None) -> Parsed:
    """A whole text at once."""
    return collect(deltas_of(new_parser(format, most_calls=most_calls), [text]))


def calls_of(parsed: Parsed) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in parsed.calls]
