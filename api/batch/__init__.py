"""`triolet run-batch`: a file of requests answered into another file, each row what HTTP answers.

Imports `api/asking`. It promises: a row is written whole or not at all, a request with a row is not asked again, and
no line of the input, however malformed, ends the run.
"""
