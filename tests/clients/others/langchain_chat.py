"""langchain-openai: a chat, invoked and streamed, with log-probabilities; objects of a class; tools; vectors."""

import sys
from typing import Literal

import openai
import pydantic
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings


class City(pydantic.BaseModel):
    """What is asked for."""

    name: Literal["Paris", "Rome"]
    is_capital: bool


def main(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="unused") as client:
        (model,) = client.models.list().data
    chat = ChatOpenAI(base_url=base_url, api_key="unused", model=model.id, temperature=0, max_tokens=100)
    answer = chat.bind(logprobs=True).invoke("What is the capital of France?")
    assert "Paris" in answer.content
    assert answer.response_metadata["logprobs"]["content"]
    assert "Paris" in "".join(chunk.content for chunk in chat.stream("What is the capital of France?"))
    for method in ("json_schema", "function_calling"):
        city = chat.with_structured_output(City, method=method).invoke("Paris is the capital of France.")
        assert isinstance(city, City)
    tools = chat.bind_tools([City], tool_choice="City")
    (call,) = tools.invoke("Paris is the capital of France.").tool_calls
    assert isinstance(City(**call["args"]), City)
    streamed = sum(tools.stream("Paris is the capital of France."), start=AIMessageChunk(content=""))
    assert streamed.tool_calls[0]["args"] == call["args"]
    # Without this it cuts texts by OpenAI's own tokenizer, which it would fetch.
    vectors = OpenAIEmbeddings(base_url=base_url, api_key="unused", model=model.id, check_embedding_ctx_length=False)
    cat, dog = vectors.embed_documents(["a cat", "a dog"])
    assert len(cat) == len(dog) > 100


if __name__ == "__main__":
    main(sys.argv[1])
