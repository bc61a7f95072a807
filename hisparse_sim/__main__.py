"""``python -m hisparse_sim`` is ``hisparse-sim``."""

from hisparse_sim.cli.main import main

if __name__ == "__main__":
    main()
