"""The win rate at equal lengths: what a judge would say if both answers were as long (Dubois et al. 2024)."""

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SPLITS = 5
# Fewer pairs say nothing about length and quality apart.
_FEWEST = 20
_STRENGTHS = np.logspace(-4, 4, 10)
_SEED = 123
_LEAST = 1e-15


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
