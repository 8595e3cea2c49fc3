"""The kernels, compiled once into the user's own cache; threads as many as the tests may use."""

import pytest

from triolet.model.native.library import Library, load_library


@pytest.fixture(scope="session")
def library() -> Library:
    """The kernels of this machine, with two threads even where there is one core."""
    loaded = load_library()
    loaded.resize_pool(2)
    return loaded
