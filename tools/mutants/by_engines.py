"""Mutants that the exact engines and the certificate of post-processing notice."""

from mutant import CONTRACT, LOSSES, PAIRS, POST, RHO, Mutant

BY_ENGINES = [
    # what only the exact engine along paths and the certificate of post-processing see
    Mutant(
        "Gaussian noise of pairs at half its deviation",
        "privacy/plan.py",
        "return step.parameter * self.whole / weight",
        "return step.parameter * self.whole / weight / (4 if step.law == "
        '"gaussian" else 1)',
        f"{LOSSES} -k 'class_loses and pairs and delta and levels'",
    ),
    Mutant(
        "Laplace noise of pairs at half its scale",
        "privacy/plan.py",
        "return step.parameter * self.whole / weight",
        "return step.parameter * self.whole / weight / (1 if step.law == "
        "'gaussian' else 2)",
        f"{LOSSES} -k 'class_loses and pairs and levels and not delta'",
    ),
    Mutant(
        "pairs of columns are shown whole at the price of residuals",
        "margins/residuals.py",
        "return not self.whole and 1 <= len(margin) <= 2",
        "return not self.whole and len(margin) == 1",
        f"{LOSSES} -k 'class_loses and pairs and delta and levels'",
    ),
    Mutant(
        "the choice of pairs forgets a person's cap",
        "fields/pair_counts.py",
        "both = 2 * Sensitivity.of_counts(self.schema, neighbours).l1",
        "both = 2 * Sensitivity.of_counts(self.schema, neighbours).l1 / "
        "self.schema.records.max_per_person",
        f"{LOSSES} -k 'class_loses and pairs and chosen'",
    ),
    Mutant(
        "intervals are looked into by exact counts",
        "margins/intervals.py",
        "kept = curator.decide(noisy, partial(np.less_equal, limit)) & asked",
        "kept = curator.decide(self.counts(curator._table, layer), "
        "partial(np.less, 0)) & asked",
        f"{LOSSES} {POST} -k 'numbers'",
    ),
    Mutant(
        "published cuts are exact quantiles",
        "margins/fine_columns.py",
        "column.name: column.cuts(laws[column.name]) for column in self.columns",
        """column.name: column.cuts(
                    np.append(
                        column.counts(curator._table, len(column.nodes) - 1)
                        + 1e-9,
                        0.0,
                    )
                ) for column in self.columns""",
        f"{LOSSES} {POST} -k numbers",
    ),
    Mutant(
        "sets of pairs have exactly as many records as the table under add-remove",
        "fields/margins.py",
        "n_records = max(round(pairs.n_records), 0)",
        "n_records = curator._table.n_records",
        f"{POST} -k 'same_answers and pairs'",
    ),
    Mutant(
        "one number has no noise",
        "privacy/curator.py",
        "noisy = true + noise.reshape(n_runs, len(true))",
        """noise = noise.reshape(n_runs, len(true)).copy()
    noise[:, :1] = 0
    noisy = true + noise""",
        f"{LOSSES} -k 'class_loses and laplace-sanitizer'",
    ),
    Mutant(
        "one number behind an image has no noise",
        "privacy/curator.py",
        "return step.image.show(true + noise)",
        """noise[:, :1] = 0
        return step.image.show(true + noise)""",
        f"{LOSSES} -k 'class_loses and pairs and levels'",
    ),
    Mutant(
        "every second noise behind an image is the first one's opposite",
        "privacy/curator.py",
        "noise[:, alike] = drawn.reshape(n_runs, -1)",
        """drawn = drawn.reshape(n_runs, -1)
            half = drawn.shape[1] // 2
            drawn[:, half : 2 * half] = -drawn[:, :half]
            noise[:, alike] = drawn""",
        f"{LOSSES} -k 'class_loses and pairs and levels'",
    ),
    Mutant(
        "draws of Gaussian noise come in opposite pairs",
        "privacy/noise.py",
        "return drawn[:n]",
        "return np.concatenate([drawn[: n - n // 2], -drawn[: n // 2]])",
        f"{LOSSES} -k draws_are_independent",
    ),
    Mutant(
        "differences of Gaussian counts have less noise than their law needs",
        "margins/residuals.py",
        "return max(least)",
        "return variance",
        f"{LOSSES} {PAIRS} -k 'smoothing or nearly_of_its_law or quiet'",
    ),
    Mutant(
        "the part of delta for noise that isn't of its law is forgotten",
        "margins/residuals.py",
        "return Fraction(2.001 * total)",
        "return Fraction(1, 10**300)",
        f"{LOSSES} {PAIRS} -k 'class_loses and pairs and delta or nearly_of_its_law'",
    ),
    Mutant(
        "pairs are counted again by exact counts",
        "fields/pair_counts.py",
        "chosen = curator.decide(first.noisy, rule).tolist()",
        """held = curator._table
        exact = design.count(held, first.fine.levels(held))
        shown = design.image.show(exact[None])[0]
        rule = partial(
            most_telling,
            design,
            first.step,
            replace(first, noisy=shown).estimate(),
            candidates,
            self.n_pairs,
        )
        chosen = curator.decide(first.noisy, rule).tolist()""",
        f"{LOSSES} {POST} -k 'pairs'",
    ),
    Mutant(
        "a factor of .99 in the certificate of pairs",
        "margins/residuals.py",
        "return 2 * bound / WEIGHT + 2 * third",
        "return Fraction(99, 100) * (2 * bound / WEIGHT + 2 * third)",
        f"{LOSSES} -k 'class_loses and pairs and delta and four'",
    ),
    Mutant(
        "differences are rounded to even numbers",
        "margins/residuals.py",
        "shown.append(difference(part, n_axes).reshape(n_runs, -1))",
        "shown.append((difference(part, n_axes) // 2 * 2).reshape(n_runs, -1))",
        f"{LOSSES} -k 'class_loses and pairs and delta and levels'",
    ),
    Mutant(
        "views forget one of two counts that a replaced record changes",
        "margins/tree.py",
        "lambda table: table.count(view.find(table), view.n_cells)",
        "lambda table: 2 * table.count(view.find(table), view.n_cells)",
        f"{LOSSES} -k 'class_loses and views and levels'",
    ),
    Mutant(
        "counts of a network's joint tables cost what one of them does",
        "bayes_net/privbayes.py",
        "noisy = curator.count(step, exact_counts, np.concatenate(possible), "
        "units=units)",
        "noisy = curator.count(step, exact_counts, np.concatenate(possible), "
        "units=Fraction(units, 2))",
        f"{LOSSES} -k 'class_loses and privbayes'",
    ),
    Mutant(
        "a statistic is measured in twice its units",
        "statistics/plan.py",
        "lambda table: measured_once(self.statistic, table)[: self.n_noised]",
        "lambda table: 2 * measured_once(self.statistic, table)[: self.n_noised]",
        f"{LOSSES} -k 'class_loses and modips and counts'",
    ),
    Mutant(
        "the second of two counts is shown without noise",
        "statistics/plan.py",
        "return np.append(noisy, curator.n_records - noisy.sum())",
        """return np.append(
            noisy, measured_once(self.statistic, curator._table)[self.n_noised :]
        )""",
        f"{POST} -k 'modips and coin'",
    ),
    Mutant(
        "sets of views have exactly as many records as the table under add-remove",
        "margins/synthesis.py",
        "trees.append(plan.design.measure(curator))",
        """noisy = plan.design.measure(curator)
            n = curator._table.n_records
            views = tuple(view * (n / view.sum()) for view in noisy.views)
            trees.append(type(noisy)(**{**vars(noisy), "views": views}))""",
        f"{POST} -k 'same_answers and views and add-remove'",
    ),
    Mutant(
        "public rows keep the order of the file",
        "data/table.py",
        "self.repeats(np.lexsort([*by_value, *by_level]))",
        "self.repeats(np.arange(len(self.frame)))",
        f"{POST} -k 'same_answers and public'",
    ),
    Mutant(
        "an election of columns has half of its width",
        "margins/elections.py",
        "chosen = curator.choose(self.steps[number - 1], scores)",
        "chosen = curator.choose(self.steps[number - 1], lambda table: "
        "np.where(scores(table) == UNAVAILABLE, UNAVAILABLE, 2 * scores(table)))",
        f"{LOSSES} -k 'class_loses and steps and layers'",
    ),
    Mutant(
        "choices of a network are three times as sharp",
        "bayes_net/network.py",
        "curator.choose(step, scores, units=units)",
        "curator.choose(step, scores, units=Fraction(units, 3))",
        f"{CONTRACT} -k privbayes",
    ),
    Mutant(
        "urns are drawn with half of their weight",
        "histogram/urns.py",
        "epsilon=1 / draw.scale",
        "epsilon=2 / draw.scale",
        f"{LOSSES} -k 'class_loses and (mcclure or multinomial or smoothed)'",
    ),
    Mutant(
        "a line hands on more than it left",
        "quantile/kng.py",
        "left = budget.epsilon * (1 - share)",
        "left = budget.epsilon",
        f"{LOSSES} {CONTRACT} -k 'kng-residual'",
    ),
    Mutant(
        "scores of a quantile are twice as sharp",
        "quantile/line_search.py",
        "chosen = curator.choose(step, scores, share=self.share)",
        "chosen = curator.choose(step, lambda table: 8 * scores(table), "
        "share=self.share)",
        f"{LOSSES} {CONTRACT} -k 'kng'",
    ),
    Mutant(
        "replacing a record moves a chosen line by half as much",
        "quantile/column_plan.py",
        "l1=2 * spread if self.moves else spread",
        "l1=spread",
        "tests/prices/test_kng_proofs.py -k changes_its_confidential",
    ),
    # prices in rho of releases that have a pure one
    Mutant(
        "a number that moves far costs its steps one by one in rho",
        "privacy/rho.py",
        "bounds = [l2_squared * of_shift(rate, Fraction(1))]",
        "bounds = [l1 * of_shift(rate, Fraction(1))]",
        f"{RHO} -k million_steps",
    ),
    Mutant(
        "a choice costs a sixteenth of its square in rho",
        "privacy/rho.py",
        "return min(length**2 / 8, of_pure(length))",
        "return min(length**2 / 16, of_pure(length))",
        f"{RHO} -k choice_attains",
    ),
    Mutant(
        "every weight has the rho of the least noise's scale",
        "privacy/plan.py",
        "laplace_rho(1 / image.scale(self, weight), moved.l1, moved.l2_squared)",
        "laplace_rho(1 / self.scale / image.whole, moved.l1, moved.l2_squared)",
        f"{RHO} -k each_weight",
    ),
    Mutant(
        "repetitions of a choice cost one in rho",
        "privacy/plan.py",
        "return self.times * of_range(price_once)",
        "return of_range(price_once)",
        f"{RHO} -k choice_attains",
    ),
    Mutant(
        "draws from a Polya urn cost what independent ones do in rho",
        "histogram/urns.py",
        "each = cap * polya_draw(epsilon / cap, self.n_draws)",
        "each = epsilon / self.n_draws",
        f"{RHO} -k urns_cost",
    ),
    Mutant(
        "a person's cap is forgotten by the rho of an urn",
        "histogram/urns.py",
        "each = cap * polya_draw(epsilon / cap, self.n_draws)",
        "each = polya_draw(epsilon / cap, self.n_draws)",
        f"{RHO} -k urns_cost",
    ),
    Mutant(
        "of a line and a histogram that share a price only the line has a rho",
        "quantile/kng.py",
        "return max(alone, (1 - share) * alone + chosen)",
        "return chosen",
        f"{RHO} {LOSSES} -k 'share_a_price or rho_of_a_pure and kng-residual'",
    ),
    Mutant(
        "prices in rho are rounded down",
        "privacy/rho.py",
        "rounding=ROUND_CEILING",
        "rounding='ROUND_FLOOR'",
        f"{RHO} -k rounded_up",
    ),
]
