"""The report: one page that shows what a build made, why, from what, and what took the time."""
