"""Mutants that tests of one mechanism or module notice."""

from mutant import CENTRED, CONTRACT, CURATOR, GROUPS, INTERVALS, PAIRS, SCORES, Mutant

BY_TESTS = [
    # prices and noise, for all mechanisms
    Mutant(
        "a person's cap doesn't count",
        "privacy/sensitivity.py",
        "cap = schema.records.max_per_person",
        "cap = 1",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "replacing a record changes one count",
        "privacy/sensitivity.py",
        'return 2 if neighbours == "replace-one" else 1',
        "return 1",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "the cap of a squared sensitivity isn't squared",
        "privacy/sensitivity.py",
        "l2_squared=cap**2 * squared",
        "l2_squared=cap * squared",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "repetitions of a step share no price",
        "privacy/plan.py",
        "return self.sensitivity.l1 * self.times / self.price",
        "return self.sensitivity.l1 / self.price",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "Gaussian noise of twice its rho",
        "privacy/plan.py",
        "return self.sensitivity.l2_squared * self.times / (2 * self.price)",
        "return self.sensitivity.l2_squared * self.times / (4 * self.price)",
        f"{CURATOR} -k sensitivity",
    ),
    Mutant(
        "rounds aren't added up",
        "privacy/plan.py",
        "return self.repeats * sum(self._items(self._unit).values(), Fraction(0))",
        "return sum(self._items(self._unit).values(), Fraction(0))",
        f"{CURATOR} -k add_up",
    ),
    Mutant(
        "a step is asked out of order",
        "privacy/curator.py",
        "        if step != due:",
        "        if step not in self._plan.steps:",
        f"{CURATOR} -k refused",
    ),
    Mutant(
        "a step is asked for another law",
        "privacy/curator.py",
        "        if step.law not in laws:",
        "        if step.law not in laws and not laws:",
        f"{CURATOR} -k refused",
    ),
    Mutant(
        "more is asked than is priced",
        "privacy/curator.py",
        "        if self.finished:\n            raise PlanError",
        "        if self.finished and step.times > 1:\n            raise PlanError",
        f"{CURATOR} -k refused",
    ),
    Mutant(
        "the number of records is told under add-remove",
        "privacy/answers.py",
        "if not n_public:",
        "if table is None:",
        f"{CURATOR} -k protected",
    ),
    Mutant(
        "noise is left out",
        "privacy/curator.py",
        "noisy = true + noise.reshape(n_runs, len(true))",
        "noisy = true + 0 * noise.reshape(n_runs, len(true))",
        f"{CURATOR} -k 'law_of_releases or rounds'",
    ),
    Mutant(
        "half the noise is drawn",
        "privacy/curator.py",
        "noise = draw(step.parameter, n_runs",
        "noise = draw(step.parameter / 2, n_runs",
        "tests/audit/test_audit.py -k laplace-sanitizer",
    ),
    Mutant(
        "choices are twice as sharp as their price",
        "privacy/curator.py",
        "unit = 1 / step.scale",
        "unit = 2 / step.scale",
        f"{CURATOR} -k law_of_releases",
    ),
    Mutant(
        "an exact law sees choices less sharp than they are",
        "privacy/replay.py",
        "choice_log_probabilities(scores(self._table), 1 / step.scale)",
        "choice_log_probabilities(scores(self._table), 1 / (2 * step.scale))",
        f"{CURATOR} -k exact_law",
    ),
    Mutant(
        "an answer is used before it is charged",
        "privacy/charge.py",
        "self._commit(name, encoded(answer))",
        "self._before_charge.append((name, encoded(answer)))",
        "tests/contract/test_mechanisms.py -k charged_before_any_answer",
    ),
    Mutant(
        "a seeded release isn't marked",
        "mechanism.py",
        "reproducible = bits.reproducible\n        if charge is not None",
        "reproducible = False\n        if charge is not None",
        f"{CONTRACT} -k states_what_ran",
    ),
    Mutant(
        "the statement says nothing of records without a person",
        "privacy/plan.py",
        'else:\n        yield (\n            f"Records without a value',
        'elif not records:\n        yield (\n            f"Records without a value',
        f"{CONTRACT} -k statement",
    ),
    # each mechanism's sensitivities, shares and caps
    Mutant(
        "rounds of the sanitizer have all of epsilon each",
        "histogram/laplace.py",
        "price=self.per_round(self.rounds)",
        "price=self.per_round(1)",
        f"{CONTRACT} -k laplace",
    ),
    Mutant(
        "a person's draws from an urn cost what a record's do",
        "histogram/urns.py",
        "epsilon=1 / draw.scale",
        "epsilon=draw.price",
        f"{CONTRACT} -k 'mcclure or multinomial or smoothed'",
    ),
    Mutant(
        "the rounding of scores isn't paid for",
        "margins/elections.py",
        "(2 + 2 * Fraction(1, STEPS_PER_UNIT))",
        "2",
        f"{CONTRACT} -k rounding",
    ),
    Mutant(
        "elections of columns are twice as sharp",
        "margins/steps.py",
        "l1=width * STEPS_PER_UNIT)",
        "l1=width * STEPS_PER_UNIT / 2)",
        f"{CONTRACT} -k elections_spend",
    ),
    Mutant(
        "counts of a tree have the noise of add-remove",
        "margins/synthesis.py",
        "return Sensitivity.of_counts(schema, self.neighbours)",
        'return Sensitivity.of_counts(schema, "add-remove")',
        f"{CONTRACT} -k steps",
    ),
    Mutant(
        "counts of intervals have the noise of add-remove",
        "margins/synthesis.py",
        "return Sensitivity.of_counts(schema, self.neighbours)",
        'return Sensitivity.of_counts(schema, "add-remove")',
        f"{CONTRACT} -k universal",
    ),
    Mutant(
        "each layer of a universal histogram has all of epsilon",
        "margins/universal_histogram.py",
        "price=self.per_round(self.rounds) / self.paid(schema)",
        "price=self.per_round(self.rounds)",
        f"{CONTRACT} -k universal",
    ),
    Mutant(
        "two families' scores move by as much as one",
        "bayes_net/privbayes.py",
        "return Sensitivity.of_record(schema, l1=2)",
        "return Sensitivity.of_record(schema, l1=1)",
        f"{CONTRACT} -k rounds_of_a_network",
    ),
    Mutant(
        "choices of a network don't know how far scores move",
        "bayes_net/network.py",
        "curator.choose(step, scores, units=units)",
        "curator.choose(step, scores)",
        f"{CONTRACT} -k privbayes",
    ),
    Mutant(
        "all joint tables have the noise of one",
        "bayes_net/privbayes.py",
        "np.concatenate(possible), units=units)",
        "np.concatenate(possible))",
        f"{CONTRACT} -k privbayes",
    ),
    Mutant(
        "a record that leaves one confidential stratum and enters another pays once",
        "quantile/column_plan.py",
        "l1=2 * spread if self.moves else spread)",
        "l1=spread)",
        "tests/prices/test_kng_proofs.py -k changes_its_confidential",
    ),
    Mutant(
        "levels of a column have the noise of add-remove",
        "quantile/column_plan.py",
        "price, Sensitivity.of_counts(self.schema, self.neighbours), counts",
        'price, Sensitivity.of_counts(self.schema, "add-remove"), counts',
        f"{CONTRACT} -k kng",
    ),
    Mutant(
        "each layer of a column's intervals has the price of all",
        "quantile/kng.py",
        'layers = [(f"intervals, layer {n}", left * part)',
        'layers = [(f"intervals, layer {n}", left)',
        f"{CONTRACT} tests/quantile/test_quantile.py -k 'kng or items or budget'",
    ),
    Mutant(
        "counting missing values is free",
        "quantile/column_plan.py",
        "left = epsilon * (1 - MISSING_SHARE) if",
        "left = epsilon if",
        f"{CONTRACT} tests/quantile -k 'kng or missing'",
    ),
    Mutant(
        "births and continuers each have the whole of two shares",
        "quantile/column_plan.py",
        "epsilon * panel.share(part, name)",
        "epsilon",
        "tests/quantile/test_panel.py",
    ),
    Mutant(
        "a record's window is twice what it pays for",
        "posterior/censored_posterior.py",
        "return self.draw / (2 * sensitivity.l1)",
        "return self.draw / sensitivity.l1",
        f"{CONTRACT} -k censored",
    ),
    Mutant(
        "square roots of a price are rounded up",
        "privacy/loss.py",
        "return Fraction(math.isqrt(enlarged), DIGITS)",
        "return Fraction(math.isqrt(enlarged) + 1, DIGITS)",
        "tests/contract/test_contract.py -k concentrated",
    ),
    Mutant(
        "a first stage by views is priced as a bounded range",
        "posterior/private_reference.py",
        'law="distribution",',
        'law="bounded-range",',
        "tests/posterior/test_posterior.py -k first_stage",
    ),
    Mutant(
        "a pseudo posterior claims a pure loss",
        "posterior/pseudo_posterior.py",
        'kind="asymptotic",',
        'kind="pure",',
        "tests/posterior/test_pseudo.py tests/contract/test_contract.py -k "
        "'asymptotic or statement'",
    ),
    Mutant(
        "replacing a record moves a sum by one value",
        "privacy/sensitivity.py",
        "return cls.of_record(schema, l1=2 * most,",
        "return cls.of_record(schema, l1=most,",
        "tests/prices/test_modips_and_scores.py tests/contract/test_contract.py -k "
        "'modips or sums or statistic'",
    ),
    Mutant(
        "signed sums have the Gaussian noise of unsigned ones",
        "privacy/sensitivity.py",
        "squares = 4 if signed else 2",
        "squares = 2",
        "tests/prices/test_modips_and_scores.py",
    ),
    Mutant(
        "a person may have one record more than the cap",
        "data/table.py",
        "minlength=1).max() > cap",
        "minlength=1).max() > cap + 1",
        "tests/data/test_table.py",
    ),
    # sums of scores
    Mutant(
        "a second count of pairs costs what one pair does",
        "fields/pair_counts.py",
        """moved = Sensitivity.of_counts(self.schema, neighbours, tables=self.n_pairs)
        counted = Step(
            name=PAIRS_AGAIN""",
        """moved = Sensitivity.of_counts(self.schema, neighbours)
        counted = Step(
            name=PAIRS_AGAIN""",
        "tests/prices/test_price.py -k second_count",
    ),
    Mutant(
        "a score of a chosen pair moves half as far",
        "fields/pair_counts.py",
        "both = 2 * Sensitivity",
        "both = Sensitivity",
        "tests/prices/test_price.py -k chosen_pairs",
    ),
    Mutant(
        "the choice of pairs costs twice its rho",
        "fields/pair_counts.py",
        "root(8 * price * self.n_pairs)",
        "root(16 * price * self.n_pairs)",
        f"{PAIRS} -k link_all",
    ),
    Mutant(
        "numbers of a record that is replaced keep their sign in products",
        "fields/products.py",
        """l1 = max(l1, 2 * signs + levels + numbers - 1)
                squared = max(squared, 4 * signs + levels)""",
        """l1 = max(l1, signs + levels + numbers - 1)
                squared = max(squared, signs + levels)""",
        "tests/margins/test_sums.py -k moves_products",
    ),
    Mutant(
        "all pairs forget a person's cap",
        "fields/pair_counts.py",
        "Sensitivity.of_record(schema, l1=design.moved, l2_squared=squared)",
        "Sensitivity.of_person(l1=design.moved, l2_squared=squared)",
        f"{PAIRS} -k counts_squared",
    ),
    Mutant(
        "replacing a record moves all pairs as much as adding one",
        "margins/residuals.py",
        "return n_changed(self.neighbours) * Fraction",
        "return Fraction",
        f"{CONTRACT} -k pairs",
    ),
    Mutant(
        "half of what replacing a record does to residuals is charged",
        "margins/residuals.py",
        "return 2 * bound / WEIGHT",
        "return bound / WEIGHT",
        f"{PAIRS} -k no_record",
    ),
    Mutant(
        "replacing a value moves the counts of intervals as much as adding one",
        "margins/fine_columns.py",
        """moved = Sensitivity.of_counts(schema, neighbours)
        steps = """,
        """moved = Sensitivity.of_counts(schema, "add-remove")
        steps = """,
        f"{INTERVALS} -k sensitivity",
    ),
    Mutant(
        "each column without bins spends what all of them may",
        "margins/fine_columns.py",
        "own = price * column.worth / self.worth",
        "own = price",
        f"{INTERVALS} -k costs",
    ),
    Mutant(
        "layers of a column spend more than the column may",
        "margins/intervals.py",
        "return [weight / sum(weights) for weight in weights]",
        "return [weight for weight in weights]",
        f"{INTERVALS} -k costs",
    ),
    Mutant(
        "codes in groups take more of the price than their part",
        "margins/fine_columns.py",
        "price * column.worth / self.worth",
        "price * column.worth / len(self.columns)",
        f"{INTERVALS} -k costs",
    ),
    Mutant(
        "the certificate forgets what a pair does to its second column",
        "margins/residuals.py",
        "            linear[j] += weight * f[i]\n",
        "",
        f"{PAIRS} -k no_record",
    ),
    Mutant(
        "noise behind an image has half its standard deviation",
        "privacy/curator.py",
        "draw(step.image.scale(step, weight), n_draws",
        "draw(step.image.scale(step, weight) / 4, n_draws",
        f"{PAIRS} -k unbiased",
    ),
    Mutant(
        "a zero-concentrated price forgets its tau",
        "privacy/plan.py",
        'zcdp(self._sum(), self.delta, self.neighbours, "", beyond)',
        'zcdp(self._sum(), self.delta, self.neighbours, "")',
        f"{PAIRS} -k nearly_of_its_law",
    ),
    Mutant(
        "draws shrink a rare level's slope as if its noise told all of it",
        "fields/targets.py",
        "error = least * noise * np.sqrt(2 * self.freedom)",
        "error = 0.0 * noise",
        f"{PAIRS} -k steep_slope",
    ),
    Mutant(
        "replacing a record moves a sum of scores by one score",
        "scores/scores.py",
        "both = n_changed(self.neighbours)",
        "both = 1",
        f"{SCORES} -k price_and_some",
    ),
    Mutant(
        "sums of scores forget a person's cap",
        "scores/scores.py",
        "ball = Sensitivity.of_record(schema, l1=",
        "ball = Sensitivity.of_person(l1=",
        f"{SCORES} -k price_and_some",
    ),
    Mutant(
        "steps of a score are rounded to the nearest and their norm isn't checked",
        "scores/record_score.py",
        """    steps = (STEPS * (along * shrink[:, None])).astype(np.int64)
    size = _in_order(np.abs(steps) if l1 else steps * steps)
    inside = size <= (STEPS if l1 else STEPS**2)
    total += steps[inside].sum(axis=0)""",
        """    steps = np.rint(STEPS * (along * shrink[:, None])).astype(np.int64)
    total += steps.sum(axis=0)""",
        "tests/scores/test_record_score.py -k ball",
    ),
    Mutant(
        "scores aren't pulled into the ball, nor their norm checked",
        "scores/record_score.py",
        """    shrink = np.minimum(largest, 1 / (length if l1 else np.sqrt(length)))
    # towards 0
    steps = (STEPS * (along * shrink[:, None])).astype(np.int64)
    size = _in_order(np.abs(steps) if l1 else steps * steps)
    inside = size <= (STEPS if l1 else STEPS**2)
    total += steps[inside].sum(axis=0)""",
        """    steps = (STEPS * (along * largest[:, None])).astype(np.int64)
    total += steps.sum(axis=0)""",
        f"{SCORES} -k price_and_some",
    ),
    # lines that mustn't cross, and the certificate
    Mutant(
        "a line doesn't know of the line above it",
        "quantile/pymc_step.py",
        "for line, sign in tag.beside if line is beta",
        "for line, sign in tag.beside if line is None",
        "tests/quantile/test_knorm_step.py -k 'cross or floor_knows'",
    ),
    Mutant(
        "a normal base measure is left out",
        "quantile/hit_and_run.py",
        "accepted = gain >= 0.0 or",
        "accepted = True or",
        "tests/quantile/test_knorm_step.py -k cross",
    ),
    Mutant(
        "replays draw the whole population",
        "outside/replays.py",
        "population.records.sample(population.n_records, replace=True,",
        "population.records.sample(population.n_records, replace=False,",
        "tests/outside/test_replays.py -k samples_of_the_population",
    ),
    # sums of centred scores
    Mutant(
        "centred scores of opposite signs cost what one of them does",
        "scores/centred_questions.py",
        "squares = Fraction(both * STEPS) ** 2",
        "squares = Fraction(STEPS) ** 2",
        f"{CENTRED} -k price_and_some",
    ),
    Mutant(
        "sums of centred scores forget the record that leaves",
        "scores/centred_questions.py",
        "both = n_changed(self.neighbours)",
        "both = 1",
        f"{CENTRED} -k price_and_some",
    ),
    Mutant(
        "the rounding of semidefinite blocks is forgotten",
        "scores/centred_questions.py",
        "squares = both * Fraction(STEPS) ** 2 * (ROUNDED if both > 1 else 1)",
        "squares = both * Fraction(STEPS) ** 2",
        f"{CENTRED} -k what_rounding_takes",
    ),
    Mutant(
        "sums of centred scores forget a person's cap",
        "scores/centred_questions.py",
        "return Sensitivity.of_record( self.schema, l1=both * wide",
        "return Sensitivity.of_person( l1=both * wide",
        f"{CENTRED} -k price_and_some",
    ),
    Mutant(
        "outcomes far out or above their median cost half of what they do",
        "scores/centred_questions.py",
        "self.schema, self.neighbours, STEPS, signed=False, moves=False",
        "self.schema, self.neighbours, STEPS // 2, signed=False, moves=False",
        f"{CENTRED} -k 'price_and_some and normal'",
    ),
    Mutant(
        "cells of all columns are counted at the price of one",
        "scores/centred_questions.py",
        "self.schema, self.neighbours, tables=self.n_columns",
        "self.schema, self.neighbours, tables=1",
        f"{CENTRED} -k price_and_some",
    ),
    Mutant(
        "lengths of scores are counted as if a record were only added",
        "scores/centred_questions.py",
        "sensitivity=Sensitivity.of_counts(self.schema, self.neighbours),",
        'sensitivity=Sensitivity.of_counts(self.schema, "add-remove"),',
        f"{CENTRED} -k 'price_and_some and normal'",
    ),
    Mutant(
        "the shape of outcomes isn't taken off the price of scores",
        "scores/centred_questions.py",
        'prices[kind] = whole * OF_COUNTED prices["scores"] -= whole * OF_COUNTED',
        "prices[kind] = whole * OF_COUNTED",
        f"{CENTRED} -k 'price_and_some and normal'",
    ),
    Mutant(
        "centred scores outside of their ball are added up",
        "scores/centring.py",
        "return np.where(inside[:, None], steps, 0)",
        "return steps",
        f"{CENTRED} -k outside_of_a_ball",
    ),
    Mutant(
        "centred scores aren't made smaller by what is expected",
        "scores/centring.py",
        "by_mean = self.radius / (self.radius + self._length(expected))",
        "by_mean = np.ones(len(expected))",
        CENTRED,
    ),
    Mutant(
        "lengths of records are added up in an order that hangs on how many there are",
        "scores/centring.py",
        """        total = np.zeros(len(vectors))
        for column in vectors.T:
            total += np.abs(column) if self.norm == "l1" else column * column
        return total if self.norm == "l1" else np.sqrt(total)""",
        """        power = 1 if self.norm == "l1" else 2
        scale = np.abs(vectors).max(initial=1e-300)
        total = ((np.abs(vectors) / scale) ** power).sum(axis=1)
        return scale * total ** (1 / power)""",
        CENTRED,
    ),
    Mutant(
        "named analyses have the whole budget beside the tables",
        "analyses/composite.py",
        "part = at_share(whole, SHARE_OF_ANALYSES / len(self.analyses))",
        "part = at_share(whole, SHARE_OF_ANALYSES)",
        "tests/prices/test_analyses_price.py",
    ),
    # sums by group
    Mutant(
        "the group that a record comes to is forgotten in the price",
        "groups/group_sums.py",
        "schema, l1=both * design.steps, l2_squared=both * design.steps**2",
        "schema, l1=design.steps, l2_squared=design.steps**2",
        GROUPS,
    ),
    Mutant(
        "an outcome beyond its range counts for more than one record",
        "groups/design.py",
        "return np.clip(np.nan_to_num(whole), 0, self.steps).astype(np.int64)",
        "return np.nan_to_num(whole).astype(np.int64)",
        GROUPS,
    ),
    Mutant(
        "records at the lower end of the range count twice",
        "groups/design.py",
        "self._by_group(group, self.steps - upper, table)",
        "self._by_group(group, 2 * (self.steps - upper), table)",
        GROUPS,
    ),
    Mutant(
        "the noise of sizes is left out of the posterior",
        "groups/noisy_groups.py",
        "            size_variance = 2 * in_records",
        "            size_variance = in_records / 50",
        "tests/groups/test_group_posterior.py",
    ),
    # answers to further questions
    Mutant(
        "the noise of releases that are pooled is left out",
        "scores/centred_sums.py",
        "noise=covariance @ precision @ covariance,",
        "noise=0 * covariance,",
        "tests/scores/test_pooling.py -k noise_is_that_of_all",
    ),
]
