"""Many runs or estimates of one scenario: points in, one dataset or one recommendation out.

``axes`` says which points, ``point`` what each is, ``row`` what it gives, ``folder`` where that lies,
``backend`` who computes, ``sweep`` puts them together, ``spread`` sums up the seeds. A plan has goals
(``slo``), a load (``load``), choices (``space``) and prices (``price``); ``screen`` estimates them all,
``search`` simulates the best and ``draws`` says how sure that is.
"""
