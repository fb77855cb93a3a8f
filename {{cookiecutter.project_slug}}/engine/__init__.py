"""What a job stands on. Read all of it; nothing here needs changing for an experiment.

Floors, each importing only those below it (tests/test_house.py holds them to it):

3  a job from outside   launch, sweep (.py and .sh), sync
2  the training loop    devices, precision, compilation, seeding, datasets, splits, loaders,
                        augmentation, classifiers, optimizers, schedules, ema, early_stopping,
                        checkpoints, training_state, meters
1  one library each     locks, interruption, job, journal, delivery, courier, store, reading,
                        results (MLflow), figures (matplotlib), progress (tqdm)
0  settings             settings, cli, provenance (the standard library only)

The scripts at the project's root stand on floor 4.
"""
