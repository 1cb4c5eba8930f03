"""Settings of torch that a run makes, and which numbers they leave exact."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch._inductor import config as compiler

from clove_ssl.training.numerics import Precision, start_repeatably


@pytest.fixture
def settings_of_torch() -> Iterator[None]:
    """Everything that a test here changes is put back."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    benchmark, compiled = torch.backends.cudnn.benchmark, compiler.deterministic
    products = torch.get_float32_matmul_precision()
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.backends.cudnn.benchmark, compiler.deterministic = benchmark, compiled
    torch.set_float32_matmul_precision(products)
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("deterministic", [True, False])
def test_new_memory_is_not_filled_behind_the_decoder(deterministic: bool) -> None:
    torch.utils.deterministic.fill_uninitialized_memory = True
    start_repeatably(0, torch.device("cuda"), deterministic=deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_run_on_a_gpu_starts_without_the_compiler_of_torch(deterministic: bool) -> None:
    program = (
        "import sys\n"
        "from clove_ssl.command_line.importing import starting\n"
        "with starting():\n"
        "    import torch\n"
        "    from clove_ssl.training.numerics import start_repeatably\n"
        f"start_repeatably(0, torch.device('cuda'), deterministic={deterministic})\n"
        "sys.exit('torch._inductor' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize(("name", "products"), [("fp32", "highest"), ("bf16", "high")])
def test_products_are_exact_where_the_network_is(name: str, products: str) -> None:
    torch.set_float32_matmul_precision("medium")
    Precision(name, "as asked", "cuda").prepare()
    assert torch.get_float32_matmul_precision() == products
