"""The win rate at equal lengths: what a judge would say if both answers were as long (Dubois et al. 2024)."""

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from containers.evals.intervals import Floats, LinearFigure
from containers.evals.jackknife import jackknife

_SPLITS = 5
# Fewer pairs say nothing about length and quality apart.
_FEWEST = 20
_STRENGTHS = np.logspace(-4, 4, 10)
_SEED = 123
_LEAST = 1e-15
# Where nearly all pairs are wins, or losses, all groups say the same, and a pair seems worth more than this many.
_MOST_PER_PAIR = 10
# Refits for the interval: a second or two for any number of pairs.
_GROUPS = 20


def length_controlled_share(
    points: Sequence[float], *, lengths: Sequence[int], baseline_lengths: Sequence[int], prompt_ids: Sequence[Hashable]
) -> tuple[float, LinearFigure | None] | None:
    """Return `length_controlled_win_rate` and its uncertainty over prompts, for `share_interval`.

    The model, with the strength of its penalty, is fitted again without each of 20 groups of prompts, or without each
    prompt where there are fewer. The figure counts as one observation a prompt at most, less where lengths tell much.

    Returns:
        None where there is no such win rate; without uncertainty where there is none without a group.
    """

    def fitted(places: NDArray[np.int64]) -> float | None:
        of_places = [[values[place] for place in places] for values in (lengths, baseline_lengths)]
        own = [points[place] for place in places]
        return length_controlled_win_rate(own, lengths=of_places[0], baseline_lengths=of_places[1])

    value = fitted(np.arange(len(points)))
    if value is None:
        return None
    numbers: dict[Hashable, int] = {}
    groups = np.array([numbers.setdefault(prompt, len(numbers)) for prompt in prompt_ids]) % _GROUPS
    found = [fitted(np.flatnonzero(groups != group)) for group in range(min(len(numbers), _GROUPS))]
    figure = jackknife(value, [np.nan if rate is None else rate for rate in found], num_strata=2)
    if figure is None:
        return value, None
    count = value * (1 - value) / max(figure.variance, 1e-300)
    if count > _MOST_PER_PAIR * len(points):
        figure, count = replace(figure, residuals=np.zeros(len(found))), len(numbers)
    return value, replace(figure, per_cluster=max(min(count, len(numbers)), 1.0) / len(found))


def length_controlled_win_rate(
    points: Sequence[float], *, lengths: Sequence[int], baseline_lengths: Sequence[int]
) -> float | None:
    """Return the win rate that a logistic model of win and length difference gives where the difference is zero.

    The model has one effect of the length and one of the policy: logit p = θ + φ · tanh(Δ / sd Δ), with Δ the
    baseline's length less the policy's. It is fitted as the package of AlpacaEval does for sets whose difficulties are
    not known (its formula without that term): L1 penalty, strength by five folds, each pair counted as a win with its
    points and as a loss with the rest.

    Args:
        points: of each pair: 1 a win, 0.5 a tie, 0 a loss.
        lengths: characters of the policy's answers.
        baseline_lengths: characters of the answers that they are compared with.

    Returns:
        None for fewer than 20 pairs, or where all length differences are equal.

    Source: arXiv:2404.04475; alpaca_eval 0.6.6, metrics/glm_winrate.py, held against it by a test.
    """
    differences = np.asarray(baseline_lengths, dtype=np.float64) - np.asarray(lengths, dtype=np.float64)
    if len(points) < _FEWEST or (spread := float(differences.std(ddof=1))) == 0:
        return None
    wins = np.asarray(points, dtype=np.float64)
    features = np.column_stack([np.tanh(differences / spread), np.ones(len(wins))])
    return float(1 / (1 + np.exp(-_effects(features, wins)[1])))


def _effects(features: Floats, wins: Floats) -> Floats:
    """Return the fitted effects, with the strength of the penalty that predicts left-out pairs best."""
    from sklearn.model_selection import GroupKFold  # heavy: a second

    rows, labels = np.vstack([features, features]), np.repeat([1, 0], len(wins))
    weights, groups = np.concatenate([wins, 1 - wins]), np.tile(np.arange(len(wins)), 2)
    folds = list(GroupKFold(_SPLITS).split(rows, labels, groups))
    found = np.concatenate([wins, wins])

    def loss(strength: float) -> float:
        losses = []
        for train, left_out in folds:
            effects = _fitted(rows[train], labels[train], weights[train], strength)
            chance = np.clip(1 / (1 + np.exp(-rows[left_out] @ effects)), _LEAST, 1 - _LEAST)
            of_pairs = found[left_out] * np.log(chance) + (1 - found[left_out]) * np.log(1 - chance)
            losses.append(-of_pairs.mean())
        return float(np.mean(losses))

    best = min(_STRENGTHS, key=loss)
    return _fitted(rows, labels, weights, float(best))


def _fitted(rows: Floats, labels: NDArray[np.int64], weights: Floats, strength: float) -> Floats:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(
        C=strength, l1_ratio=1.0, solver="liblinear", fit_intercept=False, random_state=_SEED, max_iter=100
    )
    if len(set(labels[weights > 0])) < 2:  # only wins, or only losses
        weights = np.maximum(weights, _LEAST)
    with warnings.catch_warnings():  # where length alone parts wins from losses, the weakest penalties never converge
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(rows, labels, sample_weight=weights)
    effects: Floats = model.coef_[0]
    return effects
