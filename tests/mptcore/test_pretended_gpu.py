"""The pretended GPU refuses the same operations as CUDA, and counts. Other tests rely on this."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mptlab_contract.pretended_gpu import DEVICE, PretendedGpu, pretended_gpu

CPU = torch.arange(6.0).view(2, 3)


@pytest.mark.parametrize("mixed", ["mm", "add", "stack", "out", "index", "generator"])
def test_the_pretended_gpu_refuses_mixed_devices(mixed: str) -> None:
    with pretended_gpu():
        gpu = CPU.to(DEVICE)
        attempts: dict[str, Callable[[], object]] = {
            "mm": lambda: gpu @ CPU.mT,
            "add": lambda: CPU + gpu,
            "stack": lambda: torch.stack([gpu, CPU]),
            "out": lambda: torch.add(gpu, 1, out=CPU.clone()),
            "index": lambda: CPU[torch.tensor([0], device=DEVICE)],
            "generator": lambda: torch.rand(3, generator=torch.Generator(), device=DEVICE),
        }
        with pytest.raises(RuntimeError, match=r"same device|generator"):
            attempts[mixed]()
        with pytest.raises((RuntimeError, TypeError)):
            gpu.numpy()


def draw(way: str, device: str | torch.device, generator: torch.Generator) -> Tensor:
    given: dict[str, Any] = {"device": device, "generator": generator}
    match way:
        case "randn":
            return torch.randn(5, dtype=torch.float64, **given)
        case "randperm":
            return torch.randperm(5, **given)
        case "multinomial":
            return torch.ones(5, device=device).multinomial(2, generator=generator)
        case "bernoulli":
            return torch.full((5,), 0.5, device=device).bernoulli(generator=generator)
    return torch.empty(5, device=device).normal_(generator=generator)


@pytest.mark.parametrize("way", ["randn", "randperm", "multinomial", "bernoulli", "normal_"])
def test_a_generator_draws_on_its_own_device(way: str) -> None:
    """It makes no copy, and continues from an earlier state."""
    outside = torch.Generator().manual_seed(3)
    expected = draw(way, "cpu", torch.Generator().manual_seed(3))
    with pretended_gpu() as gpu:
        on_cpu, on_gpu = (torch.Generator(device) for device in ("cpu", "cuda"))
        assert (on_cpu.device.type, on_gpu.device) == ("cpu", DEVICE)
        for generator in (on_gpu.manual_seed(3), torch.Generator(DEVICE).manual_seed(3)):
            state = generator.get_state()
            gpu.reset()
            first = draw(way, DEVICE, generator)
            assert gpu.to_device == gpu.synchronisations == 0
            assert gpu.launches > 0
            assert torch.equal(first.cpu(), expected)
            generator.set_state(state)
            assert torch.equal(draw(way, DEVICE, generator).cpu(), expected)
            with pytest.raises(RuntimeError, match="ImplState of size"):
                generator.set_state(on_cpu.get_state())
            with pytest.raises(RuntimeError, match="'cpu' device type for generator"):
                draw(way, "cpu", generator)
        for generator in (outside, on_cpu):
            with pytest.raises(RuntimeError, match="'cuda' device type for generator"):
                draw(way, DEVICE, generator)
            draw(way, "cpu", generator)


def counts(gpu: PretendedGpu) -> tuple[int, int, int, int]:
    return gpu.launches, gpu.synchronisations, gpu.to_device, gpu.to_host


def test_the_pretended_gpu_counts_launches_and_copies() -> None:
    with pretended_gpu() as gpu:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=DEVICE)
        assert counts(gpu) == (0, 0, 1, 0)
        y = (2 * x[:1]).mT.view(-1)  # a product, and views
        assert counts(gpu) == (1, 0, 1, 0)
        assert y.tolist() == [2, 4]
        assert counts(gpu) == (1, 1, 1, 1)
        assert y.sum().item() == 6
        assert counts(gpu) == (2, 2, 1, 1)
        assert x[x > 1.5].shape == (3,)  # how many, it must be asked
        assert counts(gpu) == (4, 3, 1, 1)
        x[torch.tensor([0])] += 1  # an index of the CPU, for each of reading and writing
        assert counts(gpu) == (7, 3, 3, 1)
        assert x.cpu().tolist() == [[2, 3], [3, 4]]


def test_gradients_and_tied_parameters_are_those_of_the_cpu() -> None:
    found = []
    for device in ("cpu", DEVICE):
        with pretended_gpu() as gpu:
            torch.manual_seed(0)
            embedding, out = nn.Embedding(5, 3), nn.Linear(3, 5)
            out.weight = embedding.weight
            both: nn.Module = nn.Sequential(embedding, out).to(device)
            assert out.weight is embedding.weight
            optimizer = torch.optim.Adam(both.parameters(), lr=0.1, fused=True)
            for _ in range(3):
                optimizer.zero_grad()
                both(torch.tensor([1, 2], device=device)).square().sum().backward()
                optimizer.step()
            assert (gpu.launches > 0) == (device == DEVICE)
            found.append(embedding.weight.detach().cpu())
    torch.testing.assert_close(found[0], found[1])


def test_a_network_without_weights_is_unchanged() -> None:
    with pretended_gpu(), torch.device("meta"):
        made = nn.Linear(2, 2)
    assert made.weight.device.type == "meta"
    assert type(made.weight) is nn.Parameter


def test_the_pretended_gpu_is_removed_afterwards() -> None:
    before = torch.cuda.is_available()
    with pretended_gpu(), torch.inference_mode():
        x = torch.ones(2, 2, device=DEVICE)
        assert torch.cuda.is_available()
        assert torch.equal(x.mT @ x, 2 * x)
    assert torch.cuda.is_available() == before
    assert type(torch.Generator()) is torch.Generator
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(AssertionError, match="pretended before"):
        x + 1
