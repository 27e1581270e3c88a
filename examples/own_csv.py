"""Writes patients.csv, records of four made-up hospitals, for `udpfl run examples/own_csv.toml`."""

import csv
import random

rng = random.Random(0)
with open("patients.csv", "w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["hospital", "age", "pressure", "ill"])
    for number in range(1200):
        age, pressure = rng.uniform(20, 90), rng.gauss(120, 15)
        risk = (age - 55) / 15 + (pressure - 120) / 15
        table.writerow(
            [
                f"hospital-{number % 4}",
                round(age, 1),
                round(pressure, 1),
                "yes" if risk + rng.gauss(0, 0.5) > 0 else "no",
            ]
        )
print("wrote patients.csv: 1200 records of four hospitals")
