"""Tests of the api room, over real sockets."""
