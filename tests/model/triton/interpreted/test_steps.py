"""Whole steps with the Triton kernels in the interpreter: the tokens are those of the torch path on the host."""

from tests.model.device_steps import DeviceDriver
from tests.model.running import Driver, our_model, reference_model
from triolet.engine.core.params import SamplingParams
from triolet.model.device_step.graphs import NoGraphs


def test_steps_of_kernels_answer_as_torch_does() -> None:
    """Grouped heads with norms, prompts in chunks beside decodes, greedy and drawn, two steps under way."""
    model = our_model(reference_model("qwen3"), pack=False)
    host = Driver(model)
    device = DeviceDriver(model, kernels="triton", graphs=NoGraphs(), pieces=False, max_num_seqs=2, max_model_len=64)
    asked = [
        ([(7 * i) % 131 for i in range(19)], SamplingParams(temperature=0)),
        ([3, 1, 4], SamplingParams(temperature=0.9, top_k=30, top_p=0.9)),
    ]
    names = [device.join(prompt, sampling=sampling, seed=9) for prompt, sampling in asked]
    for name, (prompt, sampling) in zip(names, asked, strict=True):
        expected = host.generate(host.join(prompt, sampling=sampling, seed=9), 5)
        assert device.generate(name, 5, limit=8) == expected
    for tensor in device.kv.tensors:
        assert tensor[-1].isnan().all(), "the kernels leave slots that are nobody's alone"
