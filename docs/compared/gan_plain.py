"""A GAN on scikit-learn's digits: a plain script with MLflow.

    python gan_plain.py --lr 1e-3 --seed 1

The same command goes on from the last checkpoint, in the same MLflow run.
"""

import argparse
import math
from pathlib import Path

import mlflow
import torch
from networks import discriminator, generator
from sklearn.datasets import load_digits
from torch import cdist
from torch.nn.functional import softplus
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset, random_split
from torchvision.utils import make_grid


def generated(network, count, latent, device):
    """Return images from the same noise each time."""
    network.eval()
    random = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        return network(torch.randn(count, latent, generator=random, device=device))


def energy_distance(real, fake):
    """Return the energy distance between real and generated images."""
    real, fake = real.flatten(1), fake.flatten(1)
    distance = 2 * cdist(real, fake).mean() - cdist(real, real).mean() - cdist(fake, fake).mean()
    return distance.item()


def save(state, path):
    """Write a checkpoint, whole or not at all."""
    torch.save(state, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def main():
    """Train, going on from the last checkpoint, and test the last weights."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--latent", type=int, default=32)
    parser.add_argument("--ema", type=float, default=0.995)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split-seed", type=int, default=0)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    folder = Path("runs") / ",".join(f"{name}={value}" for name, value in vars(args).items())
    folder.mkdir(parents=True, exist_ok=True)

    images = torch.from_numpy(load_digits().images).float().unsqueeze(1).to(device) / 16
    random = torch.Generator().manual_seed(args.split_seed)
    parts = random_split(TensorDataset(images), [0.72, 0.08, 0.2], random)
    train, val, test = (part[:][0] for part in parts)

    gen, disc = generator(args.latent).to(device), discriminator().to(device)
    average = get_ema_multi_avg_fn(args.ema)
    ema = AveragedModel(gen, multi_avg_fn=average, use_buffers=True)
    g_optimizer, d_optimizer = (
        torch.optim.Adam(network.parameters(), args.lr, betas=(0.5, 0.999))
        for network in (gen, disc)
    )
    steps = args.epochs * math.ceil(len(train) / args.batch_size)
    g_schedule, d_schedule = (
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for optimizer in (g_optimizer, d_optimizer)
    )
    kept = {
        "generator": gen,
        "discriminator": disc,
        "ema": ema,
        "g_optimizer": g_optimizer,
        "d_optimizer": d_optimizer,
        "g_schedule": g_schedule,
        "d_schedule": d_schedule,
    }
    epoch, run_id = 0, None
    if (folder / "last.pt").exists():
        last = torch.load(folder / "last.pt", weights_only=True)
        for name, part in kept.items():
            part.load_state_dict(last[name])
        epoch, run_id = last["place"]
        torch.set_rng_state(last["random"])

    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("gan")
    with mlflow.start_run(run_id=run_id) as run:
        mlflow.log_params(vars(args))
        while epoch < args.epochs:
            epoch += 1
            gen.train()
            totals = {"discriminator_loss": 0.0, "generator_loss": 0.0}
            for batch in torch.randperm(len(train)).split(args.batch_size):
                real, count = train[batch], len(batch)
                with torch.no_grad():
                    fake = gen(torch.randn(count, args.latent, device=device))
                loss = (softplus(-disc(real)) + softplus(disc(fake))).mean()
                d_optimizer.zero_grad()
                loss.backward()
                d_optimizer.step()
                d_schedule.step()
                totals["discriminator_loss"] += loss.item() * count
                loss = softplus(-disc(gen(torch.randn(count, args.latent, device=device)))).mean()
                g_optimizer.zero_grad()
                loss.backward()
                g_optimizer.step()
                g_schedule.step()
                totals["generator_loss"] += loss.item() * count
                ema.update_parameters(gen)
            metrics = {name: total / len(train) for name, total in totals.items()}
            metrics["lr"] = g_schedule.get_last_lr()[0]
            if epoch % 5 == 0:
                fake = generated(ema, 1000, args.latent, device)
                metrics["val_distance"] = energy_distance(val, fake)
                image = make_grid(fake[:64]).permute(1, 2, 0).cpu().numpy()
                mlflow.log_image(image, key="samples", step=epoch)
                print(
                    f"epoch {epoch}:", *(f"{name} {value:.4g}" for name, value in metrics.items())
                )
            mlflow.log_metrics(metrics, step=epoch)
            state = {name: part.state_dict() for name, part in kept.items()}
            place = epoch, run.info.run_id
            save(state | {"place": place, "random": torch.get_rng_state()}, folder / "last.pt")
        distance = energy_distance(test, generated(ema, 1000, args.latent, device))
        mlflow.log_metric("test_distance", distance, step=epoch)
        mlflow.log_artifact(str(folder / "last.pt"))
        print(f"finished: test_distance {distance:.4g}")


if __name__ == "__main__":
    main()
