# SPDX-License-Identifier: BSD-3-Clause
"""What sweep.py and report.py are made of.

definition  a sweep as it stands in TOML, and its points
target      what is measured: a file, a drive, an emulated controller; who has it, what it holds
tools       the programs that measure one point, and what they say as figures
runner      the order of points, one after the other, and what is kept
terminal    what a sweep prints when it is done
environment on what machine it was
frame       results as a table: medians, spread, ratios
figures     the table as plots
"""
