"""`python -m orders_lakehouse`, and the file that spark-submit starts."""

from cli.main import main

if __name__ == "__main__":
    main()
