"""Copies to a device, on a pretended one whose copies happen late: only when somebody waits for their event."""

from __future__ import annotations

import threading

import pytest
import torch
from simulated_device import Hasty, LatePort

from mmload.loader.device_batches import CudaPort, Ring


def ship_all(port: LatePort, count: int, buffers: int) -> list[torch.Tensor]:
    """Ship batches 0, 1, 2, ...; all arrive only at the end."""
    ring = Ring(port, (4, 2), torch.int64, buffers)
    shipped = [ring.ship(3, lambda part, n=number: part.fill_(n)) for number in range(count)]
    return [one.arrive(port) for one in shipped]


def test_no_buffer_is_written_before_its_copy_ended() -> None:
    port = LatePort()
    arrived = ship_all(port, 20, buffers=3)
    assert port.buffers == 3
    assert all(torch.equal(tensor, torch.full((3, 2), number)) for number, tensor in enumerate(arrived))


def test_without_the_wait_the_same_check_fails() -> None:
    arrived = ship_all(Hasty(), 20, buffers=3)
    assert not all(torch.equal(tensor, torch.full((3, 2), number)) for number, tensor in enumerate(arrived))


def test_an_error_while_filling_gives_the_buffer_back() -> None:
    ring = Ring(LatePort(), (4, 2), torch.int64, 1)

    def fail(part: torch.Tensor) -> None:
        raise OSError("the disk is gone")

    for _ in range(3):
        with pytest.raises(OSError, match="the disk is gone"):
            ring.ship(2, fail)
    port = LatePort()
    assert torch.equal(ring.ship(2, lambda part: part.fill_(7)).arrive(port), torch.full((2, 2), 7))


def test_many_threads_share_the_ring() -> None:
    port = LatePort()
    ring = Ring(port, (4, 2), torch.int64, 2)
    wrong: list[int] = []

    def work(first: int) -> None:
        for number in range(first, first + 50):
            arrived = ring.ship(4, lambda part, n=number: part.fill_(n)).arrive(port)
            if not torch.equal(arrived, torch.full((4, 2), number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(1000 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_cuda_port_without_its_gpu_names_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is .cuda:0., but torch finds no CUDA GPU or driver; use device=.cpu."):
        CudaPort(torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="device is .cuda:2., but the CUDA devices here are cuda:0 to cuda:1"):
        CudaPort(torch.device("cuda:2"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_poisoned_buffers_on_cuda() -> None:
    port = CudaPort(torch.device("cuda"))
    ring = Ring(port, (64, 3, 256, 256), torch.uint8, 2)
    arrived = []
    for number in range(40):
        shipped = ring.ship(64, lambda part, n=number: part.fill_(n))
        arrived.append(shipped.arrive(port).float().mean())
    assert [round(float(mean)) for mean in arrived] == list(range(40))
