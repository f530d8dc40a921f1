"""What paper 004 prints: numbers of truncated weights and censored likelihoods, and the utility of its application."""

COUNTED = ("Min", "Q1", "Median", "Mean", "Q3", "Max", "sd")
"""Summaries over replicates, the columns of table 1 and of supplementary table 3."""

COUNTS: dict[str, tuple[float, ...]] = {
    "Weighted-e, epsilon = 5": (0, 0, 0, 29, 55, 166, 48.80),
    "Censor_w, epsilon = 5": (0, 0, 0, 110, 260, 341, 129.59),
    "Censor_uw, epsilon = 5": (196, 236, 244, 247, 255, 296, 17.44),
    "Weighted-e, epsilon = 4": (0, 130, 219, 195, 272, 364, 103.48),
    "Censor_w, epsilon = 4": (0, 404, 425, 408, 440, 549, 92.56),
    "Censor_uw, epsilon = 4": (340, 398, 419, 419, 435, 481, 26.73),
    "Weighted-e, epsilon = 3": (400, 536, 574, 573, 618, 684, 60.62),
    "Censor_w, epsilon = 3": (655, 715, 741, 741, 763, 831, 35.66),
    "Censor_uw, epsilon = 3": (737, 787, 806, 809, 829, 888, 32.85),
    "Weighted-e, epsilon = 4, c1 = 0.8": (0, 0, 93, 91, 165, 269, 86.49),
    "Censor_w, epsilon = 4, c1 = 0.8": (0, 0, 0, 144, 328, 413, 165.66),
}
"""Of 2,000 records, over 100 replicates: tables 1 and 3."""

SALARY_ROWS = ("Lipschitz", "Privacy", "max-ECDF", "avg-ECDF", "Mean", "Median", "15th Q", "90th Q")

NONE = float("nan")
SALARY: dict[str, tuple[float, ...]] = {
    "Data": (NONE, NONE, NONE, NONE, 91019, 80000, 51000, 150000),
    "Weighted": (2.62, 5.24, 0.0656, 0.0011, 92994, 80135, 44303, 162351),
    "Weighted-e": (2.61, 5.22, 0.1020, 0.0025, 89525, 76451, 40574, 158037),
    "Censor_w": (2.50, 5.00, 0.0968, 0.0026, 88581, 75642, 41142, 158426),
    "Censor_uw": (2.50, 5.00, 0.1350, 0.0039, 88840, 75211, 38107, 162686),
    "PH": (NONE, 5.00, 0.1310, 0.0057, 93654, 91180, 30108, 163872),
}
"""Table 2, by column: 1,601 mathematicians and statisticians of the Survey of Doctoral Recipients, epsilon 5."""
