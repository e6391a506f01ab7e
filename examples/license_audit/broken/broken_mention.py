# SPDX-License-Identifier: MPL-2.0
"""A module whose first line is all that is known of its licence."""
