"""CLoVE's losses against slow float64 transcriptions of their formulas, and in the nasty cases."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from references.methods.ranking_loss import l2_loss, paper_loss, release_loss
from torch import Tensor

from clove_ssl.errors import UserError
from clove_ssl.losses import clove_loss, matched_cosine_loss
from clove_ssl.methods.clove.loss import RankingOptions, rank_cells

Batch = tuple[Tensor, Tensor, Tensor]
FORMS = ["release", "paper"]


def make_batch(seed: int = 0, *, unit: bool = True, density: float = 0.2) -> Batch:
    """Three images, 3x3 queries and 5x4 keys of 6 channels."""
    g = torch.Generator().manual_seed(seed)
    context = torch.randn(3, 6, 3, 3, generator=g, dtype=torch.float64)
    target = torch.randn(3, 6, 5, 4, generator=g, dtype=torch.float64)
    if unit:
        context, target = F.normalize(context, dim=1), F.normalize(target, dim=1)
    return context, target, torch.rand(3, 9, 20, generator=g) < density


@pytest.fixture
def batch() -> Batch:
    return make_batch()


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.3, 0.8]), st.integers(2, 12))
def test_release_form_is_its_formula(seed: int, density: float, top_k: int) -> None:
    batch = make_batch(seed, density=density)
    expected = release_loss(*batch, top_k=top_k)
    # The guard of 1e-6 beside the number of pairs is all that separates the two.
    assert clove_loss(*batch, top_k=top_k).item() == pytest.approx(expected, abs=2e-5)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.3, 0.8]), st.integers(2, 12))
def test_paper_form_is_equation_2(seed: int, density: float, top_k: int) -> None:
    batch = make_batch(seed, density=density, unit=False)
    expected = paper_loss(*batch, top_k=top_k)
    loss = clove_loss(*batch, top_k=top_k, form="paper")
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"drop": 0}, {"drop": 0}),
        ({"drop": 3, "top_k": 5}, {"drop": 3, "top_k": 5}),
        ({"aggregate": "vectors"}, {"vectors": True}),
        ({"negative_queries": "matched"}, {"only_matched": True}),
        ({"unmatched_images": "skip"}, {"skip_unmatched": True}),
        ({"positive_weight": 5.0, "margin": 0.5}, {"positive_weight": 5.0, "margin": 0.5}),
    ],
)
def test_options_of_the_release_form_do_what_they_say(
    batch: Batch, options: dict[str, object], reference: dict[str, object]
) -> None:
    batch[2][1] = False
    expected = release_loss(*batch, **reference)
    assert clove_loss(*batch, **options).item() == pytest.approx(expected, abs=2e-6)
    assert expected != pytest.approx(release_loss(*batch), abs=1e-4)  # the option matters


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({"aggregate": "cosines"}, {"cosines": True}),
        ({"pair_reduction": "mean"}, {"average_pairs": True}),
        ({"positive_weight": 5.0, "margin": 0.5}, {"positive_weight": 5.0, "margin": 0.5}),
    ],
)
def test_options_of_the_paper_form_do_what_they_say(
    options: dict[str, object], reference: dict[str, object]
) -> None:
    batch = make_batch(unit=False)
    expected = paper_loss(*batch, **reference)
    assert clove_loss(*batch, form="paper", **options).item() == pytest.approx(expected, rel=1e-12)
    assert expected != pytest.approx(paper_loss(*batch), rel=1e-6)


def test_paper_form_with_all_queries_adds_a_hinge_per_unmatched_query(batch: Batch) -> None:
    context, target, matches = batch
    matches[:] = False
    matches[:, 0, 0] = True
    matched = clove_loss(*batch, form="paper", margin=100.0)
    everywhere = clove_loss(*batch, form="paper", margin=100.0, negative_queries="all")
    result = rank_cells(
        *batch, options=RankingOptions(form="paper", negative_queries="all", margin=0.0)
    )
    assert result.negative_cosine is not None
    one = rank_cells(*batch, options=RankingOptions(form="paper")).negative_cosine
    lonely = 9 * result.negative_cosine - one  # 8 queries without a match in each image
    assert (everywhere - matched).item() == pytest.approx((800 + lonely).mean().item(), rel=1e-12)


def test_skipping_unmatched_images_changes_the_mean_of_the_paper_form(batch: Batch) -> None:
    batch[2][1] = False
    kept = clove_loss(*batch, form="paper")
    skipped = clove_loss(*batch, form="paper", unmatched_images="skip")
    assert skipped.item() == pytest.approx(1.5 * kept.item(), rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("margin", [100.0, 0.3])
@pytest.mark.parametrize("aggregate", ["cosines", "vectors"])
def test_gradients_are_exact(batch: Batch, form: str, margin: float, aggregate: str) -> None:
    context, target, matches = batch
    context, target = context[:2].requires_grad_(), target[:2].requires_grad_()

    def loss(c: Tensor, t: Tensor) -> Tensor:
        return clove_loss(c, t, matches[:2], form=form, margin=margin, aggregate=aggregate, top_k=5)

    assert torch.autograd.gradcheck(loss, (context, target))


def test_l2_loss_is_its_formula_and_its_gradient_is_exact(batch: Batch) -> None:
    batch[2][1] = False
    assert matched_cosine_loss(*batch).item() == pytest.approx(l2_loss(*batch), abs=2e-6)
    context = batch[0].requires_grad_()
    assert torch.autograd.gradcheck(lambda c: matched_cosine_loss(c, *batch[1:]), (context,))


def test_l2_loss_can_leave_unmatched_images_out(batch: Batch) -> None:
    batch[2][1] = False
    kept = matched_cosine_loss(*batch)
    skipped = matched_cosine_loss(*batch, unmatched_images="skip")
    assert skipped.item() == pytest.approx(1.5 * kept.item(), rel=1e-12)


def value_and_gradients(batch: Batch, **options: object) -> tuple[float, Tensor, Tensor]:
    context, target = batch[0].clone().requires_grad_(), batch[1].clone().requires_grad_()
    loss = clove_loss(context, target, batch[2], **options)
    loss.backward()
    assert context.grad is not None
    assert target.grad is not None
    assert torch.isfinite(context.grad).all()
    assert torch.isfinite(target.grad).all()
    return loss.item(), context.grad, target.grad


def test_an_image_without_a_match_still_repels_its_negatives_in_the_release_form(
    batch: Batch,
) -> None:
    batch[2][0] = False
    _, gradient, _ = value_and_gradients(batch)
    assert gradient[0].abs().max() > 0
    result = rank_cells(*batch, options=RankingOptions())
    assert result.positive_cosine[0] == 0
    assert result.pairs[0] == 0
    assert result.unmatched_cells[0] == 1


def test_an_image_without_a_match_is_silent_when_skipped(batch: Batch) -> None:
    batch[2][0] = False
    _, gradient, _ = value_and_gradients(batch, unmatched_images="skip")
    assert gradient[0].abs().max() == 0
    assert gradient[1:].abs().flatten(1).amax(1).min() > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_without_any_match_has_a_finite_gradient(batch: Batch, form: str) -> None:
    batch[2][:] = False
    value_and_gradients(batch, form=form)
    loss, gradient, _ = value_and_gradients(batch, form=form, unmatched_images="skip")
    assert loss == 0
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("few", ["clamp", "drop"])
def test_queries_that_match_everything_have_no_negative_and_a_finite_gradient(
    batch: Batch, form: str, few: str
) -> None:
    batch[2][:] = True
    loss, gradient, _ = value_and_gradients(batch, form=form, few_negatives=few)
    if few == "drop":
        assert loss == 0
        assert gradient.abs().max() == 0
    else:
        reference = release_loss(*batch) if form == "release" else paper_loss(*batch)
        assert loss == pytest.approx(reference, abs=2e-5)


def test_a_single_negative_is_dropped_as_the_most_similar_one(batch: Batch) -> None:
    batch[2][:] = True
    batch[2][:, :, 0] = False
    result = rank_cells(*batch, options=RankingOptions())
    assert result.negative_cosine is not None
    assert result.short_cells is not None
    assert (result.negative_cosine == 0).all()
    assert (result.short_cells == 1).all()
    kept = rank_cells(*batch, options=RankingOptions(drop=0)).negative_cosine
    assert kept is not None
    assert (kept != 0).all()


def test_queries_short_of_negatives_are_counted_and_use_what_they_have(batch: Batch) -> None:
    batch[2][0, 4] = True
    batch[2][0, 4, :3] = False  # three of the ten wanted
    result = rank_cells(*batch, options=RankingOptions())
    assert result.short_cells is not None
    torch.testing.assert_close(result.short_cells, torch.tensor([1 / 9, 0, 0]))
    assert clove_loss(*batch).item() == pytest.approx(release_loss(*batch), abs=2e-6)


def test_dropping_silences_the_whole_image_but_keeps_it_in_the_mean(batch: Batch) -> None:
    clamped = rank_cells(*batch, options=RankingOptions()).loss
    batch[2][0, 4] = True
    loss, gradient, _ = value_and_gradients(batch, few_negatives="drop")
    assert gradient[0].abs().max() == 0
    assert loss == pytest.approx(clamped[1:].sum().item() / 3, rel=1e-12)


def test_fewer_keys_than_top_k_are_no_error(batch: Batch) -> None:
    context, target, matches = batch
    small = (context, target[..., :2, :2], matches[..., :4])
    assert clove_loss(*small).item() == pytest.approx(release_loss(*small), abs=2e-6)


def test_the_hinge_closes_only_below_the_margin(batch: Batch) -> None:
    loss, gradient, _ = value_and_gradients(batch, margin=-50.0)
    assert loss == 0
    assert gradient.abs().max() == 0
    near, _, _ = value_and_gradients(batch, margin=100.0)
    far, _, _ = value_and_gradients(batch, margin=200.0)
    assert far - near == pytest.approx(100.0, rel=1e-12)


@pytest.mark.parametrize("form", FORMS)
def test_zero_vectors_give_no_nan(batch: Batch, form: str) -> None:
    batch[0][0] = 0
    batch[1][1] = 0
    value_and_gradients(batch, form=form)


def test_inputs_are_not_changed(batch: Batch) -> None:
    copies = [tensor.clone() for tensor in batch]
    value_and_gradients(batch, form="paper")
    value_and_gradients(batch)
    assert all(torch.equal(a, b) for a, b in zip(batch, copies, strict=True))


def test_a_nan_in_the_features_reaches_the_loss(batch: Batch) -> None:
    batch[0][0, 0, 0, 0] = torch.nan
    assert clove_loss(*batch).isnan()


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_features_are_compared_in_single_precision(batch: Batch, form: str) -> None:
    context, target, matches = batch
    halves = context.bfloat16(), target.bfloat16()
    loss = clove_loss(*halves, matches, form=form)
    assert loss.dtype == torch.float32
    expected = clove_loss(halves[0].float(), halves[1].float(), matches, form=form)
    assert torch.equal(loss, expected)


def test_autocast_does_not_touch_the_loss(batch: Batch) -> None:
    context, target, matches = batch[0].float(), batch[1].float(), batch[2]
    with torch.autocast("cpu", torch.bfloat16):
        inside = clove_loss(context, target, matches)
    assert torch.equal(inside, clove_loss(context, target, matches))


@pytest.mark.parametrize("form", FORMS)
def test_a_bank_of_the_other_views_cells_replaces_them(form: str) -> None:
    context, target, matches = make_batch()
    one = (context[:1], target[:1], torch.zeros_like(matches[:1]))
    one[2][0, 0, 0] = True
    bank = target[0].flatten(1).T
    for mask in (None, torch.ones(len(bank), dtype=torch.bool)):
        banked = rank_cells(
            *one, options=RankingOptions(form=form), bank=bank, bank_mask=mask
        ).negative_cosine
        everything = torch.zeros_like(one[2])
        plain = rank_cells(
            one[0],
            one[1],
            everything,
            options=RankingOptions(form=form, negative_queries="all"),
        ).negative_cosine
        if form == "release":
            torch.testing.assert_close(banked, plain, rtol=0, atol=1e-12)
        else:  # only the first query is matched
            single = rank_cells(
                context[:1, :, :1, :1],
                one[1],
                everything[:, :1],
                options=RankingOptions(form=form, negative_queries="all"),
            ).negative_cosine
            torch.testing.assert_close(banked, single, rtol=0, atol=1e-12)


def test_masked_rows_of_a_bank_are_never_chosen(batch: Batch) -> None:
    bank = F.normalize(torch.randn(30, 6, dtype=torch.float64), dim=1)
    mask = torch.arange(30) < 12
    rubbish = bank.clone()
    rubbish[12:] = 1e6
    expected = clove_loss(*batch, negatives=bank[:12])
    assert torch.equal(clove_loss(*batch, negatives=rubbish, negatives_mask=mask), expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("few", ["clamp", "drop"])
def test_an_empty_bank_leaves_only_the_attraction(batch: Batch, form: str, few: str) -> None:
    bank, nothing = torch.zeros(30, 6, dtype=torch.float64), torch.zeros(30, dtype=torch.bool)
    options = {"form": form, "few_negatives": few, "negatives": bank, "negatives_mask": nothing}
    loss, gradient, _ = value_and_gradients(batch, **options)
    assert (loss == 0) == (few == "drop")
    result = rank_cells(*batch, options=RankingOptions(form=form), bank=bank, bank_mask=nothing)
    assert result.short_cells is not None
    assert result.short_cells.min() > 0


def test_pairs_of_views_can_be_compared_in_one_call() -> None:
    batches = [make_batch(seed) for seed in range(3)]
    joined = [torch.cat(parts) for parts in zip(*batches, strict=True)]
    terms = rank_cells(*joined, options=RankingOptions()).term_losses(3)
    alone = torch.stack([clove_loss(*batch) for batch in batches])
    torch.testing.assert_close(terms, alone, rtol=0, atol=1e-12)


def test_terms_with_different_numbers_of_matched_images_are_averaged_on_their_own() -> None:
    batches = [make_batch(seed) for seed in range(2)]
    batches[0][2][:2] = False
    batches[1][2][:] = False
    joined = [torch.cat(parts) for parts in zip(*batches, strict=True)]
    options = RankingOptions(unmatched_images="skip")
    terms = rank_cells(*joined, options=options).term_losses(2)
    assert terms[0].item() == pytest.approx(
        release_loss(*batches[0], skip_unmatched=True), abs=2e-5
    )
    assert terms[1] == 0


@pytest.mark.parametrize("scale", [1.0, 2.0**16])  # as fp16 scales losses
def test_a_term_that_counts_no_image_has_no_gradient(scale: float) -> None:
    context, target, matches = make_batch()
    context = context.float().requires_grad_()
    options = RankingOptions(unmatched_images="skip")
    result = rank_cells(context, target.float(), torch.zeros_like(matches), options=options)
    (scale * result.term_losses(skips=True).sum()).backward()  # type: ignore[no-untyped-call]
    assert context.grad is not None
    assert (context.grad == 0).all()


def test_a_mask_for_other_maps_is_refused(batch: Batch) -> None:
    context, target, matches = batch
    with pytest.raises(ValueError, match="matches has shape"):
        clove_loss(context, target, matches.mT)
    with pytest.raises(ValueError, match="same B and D"):
        clove_loss(context, target[:, :3], matches)


def test_unknown_choices_are_refused_with_a_suggestion(batch: Batch) -> None:
    with pytest.raises(UserError, match="Did you mean 'paper'"):
        clove_loss(*batch, form="papr")
    with pytest.raises(UserError, match="leaves no negative"):
        clove_loss(*batch, top_k=3, drop=3)
