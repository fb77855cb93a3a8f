"""Scores of classifiers that know nothing of the order of words, to compare the example with.

    python scripts/finetuning_baselines.py    the first rows of the example's table

They have the training and the test texts of the example's default jobs, and no use for those that
validate.
"""

import sys
from pathlib import Path

from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import make_pipeline

sys.dont_write_bytecode = True  # into the example
REPOSITORY = Path(__file__).resolve().parents[1]
PROJECT = REPOSITORY / "{{cookiecutter.project_slug}}"
sys.path[:0] = [str(REPOSITORY / "examples" / "finetuning"), str(PROJECT)]

import data  # noqa: E402
from settings import Settings  # noqa: E402

CLASSIFIERS = {
    "the most frequent topic": DummyClassifier(),
    "logistic regression of TF-IDF": make_pipeline(TfidfVectorizer(), LogisticRegression(C=10)),
}


def main() -> None:
    """Print accuracies and macro F1 on the test texts."""
    splits = data.load(Settings(), Path())
    texts, labels = zip(*splits.train, strict=True)
    tested, wanted = zip(*splits.test, strict=True)
    print(f"{len(texts)} texts to train on, {len(tested)} to test")
    for name, classifier in CLASSIFIERS.items():
        found = classifier.fit(texts, labels).predict(tested)
        f1 = f1_score(wanted, found, average="macro", zero_division=0)
        print(f"{name}: accuracy {accuracy_score(wanted, found):.3f}, macro F1 {f1:.3f}")


if __name__ == "__main__":
    main()
