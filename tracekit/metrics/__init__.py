"""Measures on a timeline: functions from columns to values; none of them prints or plots."""
