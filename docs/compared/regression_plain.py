"""Regression on scikit-learn's diabetes data: a plain script with MLflow.

    python regression_plain.py --model linear --lr 1e-2 --seed 1

The same command goes on from the last checkpoint, in the same MLflow run.
"""

import argparse
import math
from pathlib import Path

import mlflow
import torch
from networks import Scaled
from sklearn.datasets import load_diabetes
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset, random_split


def measure(network, part):
    """Return the squared error, the mean absolute error and R² over all examples of a part."""
    features, targets = part[:]
    network.eval()
    with torch.no_grad():
        errors = network(features) - targets
    loss = errors.square().mean().item()
    r2 = 1 - loss / targets.var(correction=0).item()
    return {"loss": loss, "mae": errors.abs().mean().item(), "r2": r2}


def save(state, path):
    """Write a checkpoint, whole or not at all."""
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def main():
    """Train, going on from the last checkpoint, and test the best weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["mlp", "linear"], default="mlp")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--patience", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split-seed", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    folder = Path("runs") / ",".join(f"{name}={value}" for name, value in vars(args).items())
    folder.mkdir(parents=True, exist_ok=True)

    arrays = load_diabetes(return_X_y=True, scaled=False)
    dataset = TensorDataset(*(torch.from_numpy(array).float().to(device) for array in arrays))
    random = torch.Generator().manual_seed(args.split_seed)
    train, val, test = random_split(dataset, [0.64, 0.16, 0.2], random)
    features, targets = train[:]

    network = Scaled(args.model, features, targets).to(device)
    optimizer = torch.optim.Adam(network.parameters(), args.lr)
    steps = args.epochs * math.ceil(len(train) / args.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    parts = {"network": network, "optimizer": optimizer, "schedule": schedule}
    epoch, best, best_epoch, run_id = 0, math.inf, 0, None
    if (folder / "last.pt").exists():
        last = torch.load(folder / "last.pt", weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(last[name])
        epoch, best, best_epoch, run_id = last["place"]
        torch.set_rng_state(last["random"])

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("regression")
    with mlflow.start_run(run_id=run_id) as run:
        mlflow.log_params(vars(args))
        while epoch < args.epochs and epoch - best_epoch < args.patience:
            epoch += 1
            network.train()
            total = 0.0
            for batch in torch.randperm(len(train)).split(args.batch_size):
                loss = mse_loss(network(features[batch]), targets[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item() * len(batch)
            metrics = {f"val_{name}": value for name, value in measure(network, val).items()}
            metrics |= {"train_loss": total / len(train), "lr": schedule.get_last_lr()[0]}
            mlflow.log_metrics(metrics, step=epoch)
            print(f"epoch {epoch}:", *(f"{name} {value:.4g}" for name, value in metrics.items()))
            if metrics["val_mae"] < best:
                best, best_epoch = metrics["val_mae"], epoch
                save(network.state_dict(), folder / "best.pt")
            state = {name: part.state_dict() for name, part in parts.items()}
            place = epoch, best, best_epoch, run.info.run_id
            save(state | {"place": place, "random": torch.get_rng_state()}, folder / "last.pt")
        network.load_state_dict(torch.load(folder / "best.pt", weights_only=True))
        metrics = {f"test_{name}": value for name, value in measure(network, test).items()}
        mlflow.log_metrics(metrics, step=best_epoch)
        mlflow.log_artifact(str(folder / "best.pt"))
        print("finished:", *(f"{name} {value:.4g}" for name, value in metrics.items()))


if __name__ == "__main__":
    main()
