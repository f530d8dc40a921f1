"""The public names of pdips, for type checkers and for ``__init__.py``, which imports
each when it is first used.
"""

from pdips.answering import answer as answer
from pdips.bayes_net.privbayes import PrivBayes as PrivBayes
from pdips.data.schema import Column as Column
from pdips.data.schema import Schema as Schema
from pdips.data.table import Table as Table
from pdips.errors import InputError as InputError
from pdips.errors import RefusedError as RefusedError
from pdips.fields.margins import Margins as Margins
from pdips.histogram.laplace import LaplaceSanitizer as LaplaceSanitizer
from pdips.histogram.laplace import PerturbedHistogram as PerturbedHistogram
from pdips.histogram.urns import McClureReiter as McClureReiter
from pdips.histogram.urns import MultinomialDirichlet as MultinomialDirichlet
from pdips.histogram.urns import SmoothedHistogram as SmoothedHistogram
from pdips.influence import bounds as bounds
from pdips.margins.steps import Steps as Steps
from pdips.margins.universal_histogram import UniversalHistogram as UniversalHistogram
from pdips.mechanism import Mechanism as Mechanism
from pdips.outside.laws import DiscreteGaussian as DiscreteGaussian
from pdips.outside.laws import DiscreteLaplace as DiscreteLaplace
from pdips.outside.laws import NoisyCounts as NoisyCounts
from pdips.outside.noisy_margins import NoisyMargins as NoisyMargins
from pdips.outside.replays import more_sets as more_sets
from pdips.own_models import noisy_likelihood as noisy_likelihood
from pdips.own_models import noisy_model as noisy_model
from pdips.posterior.censored_posterior import CensoredPosterior as CensoredPosterior
from pdips.posterior.finished_model import censor as censor
from pdips.posterior.pseudo_posterior import PseudoPosterior as PseudoPosterior
from pdips.privacy.ledger import Ledger as Ledger
from pdips.privacy.loss import PrivacyLoss as PrivacyLoss
from pdips.privacy.loss import Spend as Spend
from pdips.quantile.kng import KNG as KNG
from pdips.quantile.kng import KNGResidual as KNGResidual
from pdips.release.opening import open as open
from pdips.release.release import Release as Release
from pdips.release.release import RunRecord as RunRecord
from pdips.sampling import sample as sample
from pdips.scores.scores import Scores as Scores
from pdips.statistics.modips import Modips as Modips
from pdips.synthesis import synthesize as synthesize

__version__: str
