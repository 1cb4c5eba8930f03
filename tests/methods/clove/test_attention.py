"""Self-attention over the cells of a feature map."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from references.methods.attention import normalized_self_attention

from clove_ssl.methods.clove.attention import NormalizedSelfAttention, PlainSelfAttention

KINDS = [NormalizedSelfAttention, PlainSelfAttention]


def feature_map(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_normalized_attention_is_its_formula(temperature: float) -> None:
    attention = NormalizedSelfAttention(12, heads=3, temperature=temperature).double()
    torch.nn.init.normal_(attention.out.bias)
    maps = feature_map(2, 12, 3, 4)
    out = attention(maps).detach()
    for one, expected_of in zip(out, maps, strict=True):
        expected = normalized_self_attention(
            expected_of.numpy(),
            attention.qkv.weight.detach().numpy(),
            attention.out.weight.detach().numpy(),
            attention.out.bias.detach().numpy(),
            heads=3,
            temperature=temperature,
        )
        torch.testing.assert_close(one, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_normalized_attention_has_exact_gradients() -> None:
    attention = NormalizedSelfAttention(8, heads=2, learn_temperature=True).double()
    assert torch.autograd.gradcheck(attention, (feature_map(1, 8, 2, 3).requires_grad_(),))


def test_scores_do_not_depend_on_the_scale_of_the_features() -> None:
    attention = NormalizedSelfAttention(16, heads=4).double()
    maps = feature_map(1, 16, 3, 3)
    torch.testing.assert_close(attention.weights(maps), attention.weights(1000 * maps))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_forward_pass(
    kind: type[NormalizedSelfAttention | PlainSelfAttention],
) -> None:
    attention = kind(16, heads=4).double()
    maps = feature_map(2, 16, 3, 5)
    weights = attention.weights(maps)
    assert weights.shape == (2, 4, 15, 15)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 15, dtype=torch.float64))
    values = F.linear(maps.flatten(2).mT, attention.qkv.weight[32:])
    if attention.qkv.bias is not None:
        values = values + attention.qkv.bias[32:]
    mixed = weights @ values.unflatten(-1, (4, 4)).transpose(1, 2)
    expected = attention.out(mixed.transpose(1, 2).flatten(2)).mT.reshape(maps.shape)
    torch.testing.assert_close(attention(maps), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_permuting_cells_permutes_the_output(
    kind: type[NormalizedSelfAttention | PlainSelfAttention],
) -> None:
    attention = kind(16, heads=4).double()
    maps = feature_map(2, 16, 3, 3)
    torch.testing.assert_close(attention(maps.flip(-1)), attention(maps).flip(-1))


def test_plain_attention_starts_and_computes_like_torchs_own() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(16, 4)
    torch.manual_seed(0)
    mine = PlainSelfAttention(16, 4)
    assert mine.qkv.bias.abs().max() == mine.out.bias.abs().max() == 0
    limit = (6 / (16 + 48)) ** 0.5  # Xavier's bound for the stacked weight
    assert 0.9 * limit < mine.qkv.weight.abs().max() <= limit
    mine.qkv.weight.data.copy_(theirs.in_proj_weight)
    mine.out.weight.data.copy_(theirs.out_proj.weight)
    maps = feature_map(2, 16, 3, 3).float()
    cells = maps.flatten(2).permute(2, 0, 1)  # (L, B, D)
    expected = theirs(cells, cells, cells, need_weights=False)[0].permute(1, 2, 0)
    torch.testing.assert_close(mine(maps), expected.reshape(maps.shape))


def test_a_learned_temperature_starts_at_the_given_one_and_gets_a_gradient() -> None:
    torch.manual_seed(0)
    fixed = NormalizedSelfAttention(16, heads=4, temperature=0.3)
    learned = NormalizedSelfAttention(16, heads=4, temperature=0.3, learn_temperature=True)
    assert len(list(fixed.parameters())) == 3
    learned.load_state_dict(fixed.state_dict(), strict=False)
    maps = feature_map(1, 16, 3, 3).float()
    torch.testing.assert_close(learned(maps), fixed(maps))
    learned(maps).square().sum().backward()
    assert learned.log_temperature is not None
    assert learned.log_temperature.ndim == 1
    assert learned.log_temperature.grad.abs().item() > 0


def test_defaults_and_parameter_names_are_the_promised_ones() -> None:
    attention = NormalizedSelfAttention()
    assert {name: tuple(p.shape) for name, p in attention.named_parameters()} == {
        "qkv.weight": (768, 256),
        "out.weight": (256, 256),
        "out.bias": (256,),
    }
    assert attention.heads == 8
    assert attention.temperature == 0.2


def test_zero_features_give_no_nan() -> None:
    attention = NormalizedSelfAttention(16, heads=4)
    maps = torch.zeros(1, 16, 2, 2, requires_grad=True)
    attention(maps).sum().backward()
    assert torch.isfinite(maps.grad).all()


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of heads=5"):
        NormalizedSelfAttention(16, heads=5)
    with pytest.raises(ValueError, match="above 0"):
        NormalizedSelfAttention(16, heads=4, temperature=0.0)
