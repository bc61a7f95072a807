"""Many runs or estimates of one scenario: points in, one dataset out.

``axes`` says which points, ``point`` what each is, ``row`` what it gives, ``folder`` where that lies,
``backend`` who computes, ``sweep`` puts them together, ``spread`` sums up the seeds.
"""
