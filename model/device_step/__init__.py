"""Steps whose state lives on the device: what a GPU needs to be kept busy.

Imports torch, the batch, the model's weights and the messages. Rows, block tables and the last token of each sequence
stand in buffers that are allocated once; a plan's differences are uploaded, and an unchanged decode uploads nothing.
Steps of one token for each sequence are replayed graphs; sampled tokens stay on the device and feed the next step, so a
step can be launched before the one before it has landed. The same code runs on a CPU, where the tests prove it.
"""
