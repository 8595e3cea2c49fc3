"""instructor: an answer as an object of a class, by way of a JSON schema."""

import sys

import instructor
import openai
import pydantic


class City(pydantic.BaseModel):
    """What is asked for."""

    name: str
    is_capital: bool


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused") as plain:
        (model,) = plain.models.list().data
        client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
        city = client.chat.completions.create(
            model=model.id,
            messages=[{"role": "user", "content": "Paris is the capital of France."}],
            response_model=City,
            temperature=0,
            max_tokens=100,
        )
    assert isinstance(city, City)


if __name__ == "__main__":
    main(sys.argv[1])
