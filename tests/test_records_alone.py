"""No record enters another one's term: by the way in which the likelihood is made, and refused where it was meant."""

import numpy as np
import pandas as pd
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.graph.replace import clone_replace
from small_models import PAIRS, WIDE, four

from pdips import CensoredPosterior, InputError, Ledger, PseudoPosterior, Schema, Table
from pdips.bayes import refusals
from pdips.bayes.columns import stand_ins
from pdips.bayes.density import Density
from pdips.bayes.grid import split
from pdips.bayes.likelihood import censor_records
from pdips.bayes.model_file import Blueprint, as_source
from pdips.bayes.pointwise import Likelihoods
from pdips.bayes.terms import inputs_of, log_prior
from pdips.bayes.workspace import Workspace
