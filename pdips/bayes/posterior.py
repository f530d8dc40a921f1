"""The censored posterior: any PyMC model as a differentially private synthesizer (paper 004, corrected)."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from pdips.bayes import prices, reference, stages
from pdips.bayes.columns import distinct, record_values
from pdips.bayes.drawing import Censoring, Scored, score_grid
from pdips.bayes.model_file import BuildModel, Source, as_source
from pdips.bayes.parameters import EXACT, Asked, Drawn3, draw_parameters, sampler_of
from pdips.bayes.scores import Clip
from pdips.bayes.stages import Reference, Stage
from pdips.bayes.synthesis import synthetic_sets
from pdips.bayes.words import law_of
from pdips.bayes.workspace import Workspace, workspace
from pdips.errors import InputError
from pdips.ledger import Ledger
from pdips.mechanism import MOST_SETS, Clock, Drawn, Law, Outcome, Progress, Split, Variant, check_settings, run, statement
from pdips.mechanisms.urns import check_n_records
from pdips.noise import RandomBits
from pdips.privacy import Kind, Neighbours, Number, PrivacyLoss, Spend, as_float, choice, exact, zcdp
from pdips.release import Release, RunRecord
from pdips.schema import Schema
from pdips.table import Table
