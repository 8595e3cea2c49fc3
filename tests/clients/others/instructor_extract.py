"""instructor: an answer as an object of a class, by way of a JSON schema, of a tool, and of a stream."""

import sys
from typing import Literal

import instructor
import openai
import pydantic


class City(pydantic.BaseModel):
    """What is asked for."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused") as plain:
        (model,) = plain.models.list().data
        for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
            client = instructor.from_openai(plain, mode=mode)
            how = {
                "model": model.id,
                "messages": [{"role": "user", "content": "Paris is the capital of France."}],
                "response_model": City,
                "temperature": 0,
                "max_tokens": 100,
                "max_retries": 0,
            }
            assert isinstance(client.chat.completions.create(**how), City)
            *_, last = client.chat.completions.create_partial(**how)
            assert last.is_capital in (True, False)


if __name__ == "__main__":
    main(sys.argv[1])
