"""What a bound over posterior draws certifies and what it doesn't, in words."""

MEASURED = (
    "The bound is the largest |alpha_i (log p(x_i | theta_s) - c_i)| found over all records i and all draws s of this "
    "posterior."
)

USE = (
    "So, for the removal of one record that is in the table, with weights and centre as they are, and outside a part "
    "of the posterior whose mass is expected to be no more than that, the log-likelihood's part of the privacy loss is "
    "at most the bound. Weights and centre must have been fixed before these draws were made, not computed from them."
)

NOT = (
    "It does not bound the change of the normalising constant, a record that is not in the table, any other table, the "
    "change of the weights when a record changes, or parameters that were not drawn. Twice the bound is what paper 004 "
    "calls epsilon_x: it describes this table and is no guarantee of differential privacy."
)

INSIDE_ONLY = "The bound is itself a function of the confidential records without noise: it must not be published."


def in_words(*, exceedance: float, independent: bool, mixed: bool, limited: bool, weighted: bool) -> str:
    """Return the statement, a paragraph.

    Parameters
    ----------
    exceedance : float
        Bound on the probability that a further draw goes beyond the bound.
    independent : bool
        Whether the draws are independent.
    mixed : bool
        Whether R-hat of the bound is below 1.01; asked for unless the draws are independent.
    limited : bool
        Whether there is a limit beyond which terms are censored.
    weighted : bool
        Whether weights were given.
    """
    use = [USE] if independent or mixed else []
    parts = [MEASURED, _further(exceedance, independent, mixed), *use, NOT, _censoring(limited)]
    return " ".join([*parts, *([_weights(limited)] if weighted else []), INSIDE_ONLY])


def _further(exceedance: float, independent: bool, mixed: bool) -> str:
    if independent:
        return (
            "The draws being independent, one more draw from the same posterior goes beyond the bound with probability "
            f"at most {exceedance:.2g}, one in the number of draws plus one."
        )
    if not mixed:
        return (
            "The chains do not agree on the bound, or are too short to tell (R-hat below 1.01 is asked for), so "
            "nothing can be said on how often a further draw would go beyond it."
        )
    return (
        "One more draw from the same posterior goes beyond the bound with probability of about "
        f"{exceedance:.2g} or less: one in the effective number of draws plus one, which for a Markov chain is "
        "customary and not a theorem."
    )


def _censoring(limited: bool) -> str:
    if limited:
        return (
            "If the mechanism censors at the limit, each record's term is within the limit by construction and the "
            "guarantee follows from that alone; the bound here, of terms before they are censored, adds nothing to it. "
            "The share of censored records tells what the guarantee costs."
        )
    return (
        "Nothing is censored: wherever the log-likelihood of a possible record is unbounded over the prior, no finite "
        "epsilon holds, however small the bound."
    )


def _weights(limited: bool) -> str:
    how = "censored or not" if limited else "whatever the bound"
    return (
        "Weights computed from the confidential records change for every record when one of them changes, and no "
        f"finite epsilon holds for such weights, {how}. Weights that are a public function of one record are free of "
        "this."
    )
