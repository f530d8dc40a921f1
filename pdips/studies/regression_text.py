"""What the page of the regression study says."""

TEXT = """
<p>Section 3 of Bowen, Liu and Su (2021), <em>Differentially private data release via statistical election to partition
sequentially</em>. Two linear models with noise of variance 1 on four categorical predictors x1 to x4 of 2, 3, 4 and 5
levels: model 1 has main effects (11 coefficients), model 2 a mean of its own for each of the 120 combinations, drawn once
from N(0, 1) and the same in all repeats. Tables of 10,000 and of 4,000 records are released at total epsilons of 0.5, 2, 5
and 10 as four synthetic sets, the true model is fitted to each, and the four fits are combined (mean; W + B / m; Student's
t; equations 3.5 to 3.7 of Bowen and Liu 2020). Bias, root mean squared error and coverage of 95 % intervals are over
repeats, by coefficient; the combined estimates predict 100 fresh records.</p>

<h3>What the paper leaves open, and what we took</h3>
<ul>
<li>The distribution of the predictors: independent and uniform.</li>
<li>The bounds of y, cut into 15 bins: from the models' known means, lowest minus 4 to highest plus 4 standard deviations
of the noise, to one decimal. They are public; bounds read off a table would not be. Rarer values are moved onto the
bounds.</li>
<li>The penalty of the ridge regression for model 2: 1, on 120 indicators without an intercept.</li>
<li>How negative counts are handled: by this library's least squares, not negative, adding up to n.</li>
</ul>

<h3>Methods, and what they spend</h3>
<ul>
<li>STEPS: x1, x2 and x4 together above x3 and y, two layers, in that grouping as given. <em>Published</em>: nine tenths of
epsilon / 4 over two layers, noise of sensitivity 1: 1.8 epsilon, since a replaced record changes two counts of each layer.
The paper says that it took the grouping because the AICs of the table were far apart; read off the table without noise it
has no finite epsilon at all. The <em>sound</em> form takes the grouping as public and spends epsilon on counts.</li>
<li>UH modified: all columns in random order, four layers and the cells below: published 2 epsilon 5 / 4 = 2.5 epsilon.</li>
<li>PrivBayes of degree 2: published, with the noise of the code that the paper ran, n times too little for counts: the joint
tables cost n times what is claimed.</li>
</ul>
<p><em>Sound</em> measures anew for each set, at epsilon / 4; <em>sound, measured once</em> draws all four sets from one noisy
tree, with four times less noise. The latter has the smaller errors and intervals that are too short: the rule that combines
sets sees how they differ, and noise that they share doesn't show. <em>The table itself</em> is the fit without privacy,
<em>bins alone</em> four sets with y drawn anew inside its bins and no noise.</p>

<h3>What the paper says of its figures 2 and 3</h3>
<ul>
<li>Model 1: PrivBayes is best in bias, coverage and prediction and worst in RMSE; STEPS is best in RMSE; UH is worst in bias,
coverage and prediction.</li>
<li>Model 2: STEPS is best overall, PrivBayes worst in RMSE, UH worst in coverage and prediction.</li>
<li>Everything improves with n and epsilon but coverage, which moves away from 95 % as epsilon grows (PrivBayes in model 1,
STEPS in model 2). The paper puts that down to cutting y into bins. The row <em>bins alone</em> tests this.</li>
</ul>
<p>The paper prints no figures in tables, so the columns stand alone. Its 200 repeats: <code>--replicates 200</code>. With few
repeats the mean |bias| contains their own noise, about 0.8 RMSE / sqrt(repeats).</p>
"""
