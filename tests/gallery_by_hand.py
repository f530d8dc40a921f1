"""The models of the gallery by hand, with scipy: log-likelihoods of records, log priors, means."""

from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.special import expit, gammaln, logsumexp

from pdips.data.schema import Schema


def observed_of(schema: Schema):
    return next((name, column) for name, column in schema.columns.items() if not column.public)


def effects_by_hand(values, schema: Schema, coefficients):
    """Sum of the effects of the public columns, one record after the other."""
    n = len(next(iter(values.values())))
    found = np.zeros(n)
    for i in range(n):
        place = 0
        for name in schema.public_columns:
            column = schema.columns[name]
            if column.is_categorical:
                if values[name][i] > 0:
                    found[i] += coefficients[place + values[name][i] - 1]
                place += column.n_levels - 1
            else:
                middle, half = (column.upper + column.lower) / 2, (column.upper - column.lower) / 2
                found[i] += coefficients[place] * (values[name][i] - middle) / half
                place += 1
    return found


@dataclass(frozen=True)
class ByHand:
    """Records and parameters of a model; the method of its name returns (log-likelihoods, log prior, means)."""

    schema: Schema
    values: dict
    theta: dict

    @property
    def y(self):
        return self.values[observed_of(self.schema)[0]]

    @property
    def bounds(self):
        column = observed_of(self.schema)[1]
        return column.lower, column.upper

    def normal(self):
        lower, upper = self.bounds
        law = stats.norm(lower + (upper - lower) * self.theta["location"], (upper - lower) * self.theta["spread"])
        prior = stats.norm.logpdf(self.theta["location"], 0.5, 0.25) + stats.halfnorm.logpdf(
            self.theta["spread"], scale=0.25
        )
        return law.logpdf(self.y), prior, np.full(len(self.y), law.mean())

    def beta(self):
        lower, upper = self.bounds
        phi, precision = self.theta["phi"], self.theta["lambda"]
        law = stats.beta(precision * phi, precision * (1 - phi), loc=lower, scale=upper - lower)
        prior = stats.pareto.logpdf(precision, 1.5, scale=0.1)
        return law.logpdf(self.y), prior, np.full(len(self.y), lower + (upper - lower) * phi)

    def beta_regression(self):
        lower, upper = self.bounds
        theta, precision = self.theta, self.theta["lambda"]
        mean = expit(theta["intercept"] + effects_by_hand(self.values, self.schema, theta["coefficients"]))
        law = stats.beta(precision * mean, precision * (1 - mean), loc=lower, scale=upper - lower)
        prior = (
            stats.norm.logpdf(theta["intercept"], 0, 1.5)
            + stats.norm.logpdf(theta["coefficients"]).sum()
            + stats.pareto.logpdf(precision, 1.5, scale=0.1)
        )
        return law.logpdf(self.y), prior, lower + (upper - lower) * mean

    def lognormal_regression(self):
        lower, upper = np.log(self.bounds)
        theta = self.theta
        effects = effects_by_hand(self.values, self.schema, theta["coefficients"])
        middle = lower + (upper - lower) * (theta["location"] + effects)
        spread = (upper - lower) * theta["spread"]
        law = stats.lognorm(s=spread, scale=np.exp(middle))
        prior = (
            stats.norm.logpdf(theta["location"], 0.5, 0.25)
            + stats.norm.logpdf(theta["coefficients"], 0, 0.25).sum()
            + stats.halfnorm.logpdf(theta["spread"], scale=0.25)
        )
        return law.logpdf(self.y), prior, law.mean()

    def negative_binomial(self):
        upper, theta = self.bounds[1], self.theta
        width = np.log(upper + 1)
        mean = np.exp(theta["intercept"] + effects_by_hand(self.values, self.schema, theta["coefficients"]))
        size = 1 / theta["dispersion"] ** 2
        law = stats.nbinom(size, size / (size + mean))
        prior = (
            stats.norm.logpdf(theta["intercept"], width / 2, width / 4)
            + stats.norm.logpdf(theta["coefficients"]).sum()
            + stats.halfnorm.logpdf(theta["dispersion"])
        )
        return law.logpmf(self.y), prior, mean

    def hierarchical_normal(self):
        lower, upper = self.bounds
        theta, [group] = self.theta, self.schema.public_columns
        means = lower + (upper - lower) * (theta["location"] + theta["between"] * theta["offset"])
        law = stats.norm(means[self.values[group]], (upper - lower) * theta["within"])
        prior = (
            stats.norm.logpdf(theta["location"], 0.5, 0.25)
            + stats.halfnorm.logpdf([theta["between"], theta["within"]], scale=0.25).sum()
            + stats.norm.logpdf(theta["offset"]).sum()
            - stats.norm.logpdf(0)  # nine offsets that sum to zero have eight dimensions
        )
        return law.logpdf(self.y), prior, law.mean()

    def mixture(self):
        theta = self.theta
        is_log = observed_of(self.schema)[1].scale == "log"
        lower, upper = np.log(self.bounds) if is_log else self.bounds
        y = np.log(self.y) if is_log else self.y
        means = [lower + (upper - lower) * theta["gaps"][: k + 1].sum() for k in range(3)]
        spreads = (upper - lower) * theta["spreads"]
        terms = [
            np.log(w) + stats.norm.logpdf(y, m, s) for w, m, s in zip(theta["weights"], means, spreads, strict=True)
        ]
        likelihood = logsumexp(terms, axis=0) - (y if is_log else 0)
        # Dirichlet densities of ones: the factorial of the number of parts less one
        prior = np.log(2) + np.log(6) + stats.invgamma.logpdf(theta["spreads"], 2, scale=0.2).sum()
        return likelihood, prior, np.full(len(y), float(theta["weights"] @ means))

    def class_weights(self):
        """Shares of the classes for each record, given its public columns; shape (records, classes)."""
        broken = 1 - np.exp(-self.theta["breaks"] / self.theta["concentration"])
        shares = np.array([*(broken[k] * np.prod(1 - broken[:k]) for k in range(9)), np.prod(1 - broken)])
        weights = np.tile(shares, (len(next(iter(self.values.values()))), 1))
        for name in self.schema.public_columns:
            weights *= self.theta[f"{name}_levels"][:, self.values[name]].T
        return weights / weights.sum(axis=1, keepdims=True)

    def dpmpm(self):
        products = self.class_weights()
        for name, column in self.schema.columns.items():
            if not column.public:
                products = products * self.theta[f"{name}_levels"][:, self.values[name]].T
        prior = stats.gamma.logpdf(self.theta["concentration"], 1) + stats.expon.logpdf(self.theta["breaks"]).sum()
        prior += 10 * sum(gammaln(column.n_levels) for column in self.schema.columns.values())
        return np.log(products.sum(axis=1)), prior, None
