"""What the page of the voter study says."""

TEXT = """
<p>Section 4 of Bowen, Liu and Su (2021), <em>Differentially private data release via statistical election to partition
sequentially</em>: six methods release five synthetic sets each of the youth voters of the Current Population Survey
2000 to 2012 (44,821 persons, 15 columns, 1,290,240 possible cells), at five total epsilons. Table 3 is printed beside
ours, with ranks and overall scores as there: 1 is the best, equal figures to three decimals share the smaller rank.</p>

<h3>The data</h3>
<p>The paper's file is not among us. The surrogate that comes with this study's own runs was simulated from the paper's
table 1 (its marginals are met exactly) and table 2 (cell sizes); nothing else of it is real. Figures that depend on the
joint distribution can't be expected to agree with the paper's: how many of the 105 pairs are associated, how strong the
regression's effects are, how far a network of low degree falls short. Compare methods, not digits.</p>

<h3>What the published rows really spend</h3>
<p>A row called <em>published</em> is the mechanism as printed, at epsilon / 5 for each set. None of them gives the guarantee
that its epsilon says, for tables that differ in one person's record with the number of records public:</p>
<ul>
<li>flat Laplace: 2 epsilon. Noise of scale 1 / epsilon on each cell, but replacing a record changes two cells.</li>
<li>UH modified-L and STEPS-L: 2 epsilon (L + 1) / L, so 3 epsilon with two layers and 2.67 epsilon with three. The budget
is divided over L layers while L + 1 are noised, and each changes in two counts.</li>
<li>PrivBayes: the code that the paper names adds noise made for shares of records to counts, n times too little: the joint
tables cost n times what is claimed, some 45,000 times.</li>
</ul>
<p>So ranks among published rows compare methods at different true prices. The rows called <em>sound</em> spend what they
say: the same methods with corrected noise, measured once, and five sets drawn from the one noisy table, which costs
nothing more. <em>STEPS (default)</em> has no options but epsilon and the number of sets. <em>Resample</em> draws five
bootstrap samples from the table itself: no privacy, and about as well as any method could do.</p>
<p>All rows share this library's treatment of noisy counts: made consistent by generalised least squares, not negative,
adding up to n, whole numbers. The paper's correction formulas inflate counts, and it doesn't say how negative ones were
handled. This is worth more than the choice of the method: our published rows beat the paper's at the same noise.</p>

<h3>Measures</h3>
<p><em>KS</em>: largest distance of the distributions of propensity scores, from a logistic regression with all main effects
and first-order interactions, averaged over the five sets. Smaller is better, for all others larger.
<em>Consistency rate</em>: share of the 105 pairs of columns on which a chi-square test concludes as on the table itself,
p-values combined over sets by Li, Meng, Raghunathan and Rubin (1991). <em>CI</em>: overlap of 95 % confidence intervals
of the regression of voting on everything else, averaged over its 32 coefficients and for the three that matter.</p>
<p>Two of these three hang on an accident. Nobody unregistered voted, so the maximum likelihood estimates for registration,
preregistration state and the intercept don't exist. R's <code>glm</code> stops somewhere, with standard errors of a hundred and
more; intervals of that width overlap whatever the data say. We fit as R does, and get the paper's values of 0.86 to 0.87
for preregistration state and its interaction from nearly any sets that honour the structural zero. These columns say
little about utility. The last table of each epsilon has the overlaps with Firth's correction, under which estimates
exist.</p>

<h3>Misprints</h3>
<p>Ranks computed from the printed figures agree with the printed ranks but for three places, and the scores that contain
them: at log epsilon -2, flat Laplace and UH modified-2 on preregistration state (printed 4 and 3, by the figures 3 and 4);
at 1, STEPS-3 at 5 % (printed 2, by the figures 3); at 2, PrivBayes and UH modified-2 at 10 % (printed 7 and 6 of six
methods, by the figures 6 and 5). The paper columns below are as printed.</p>
<p>The paper repeats ten times: <code>--replicates 10</code>.</p>
"""
