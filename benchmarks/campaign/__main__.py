"""Run a campaign: ``python -m benchmarks.campaign requests --requests 2700``."""

import argparse
import sys
import time
from collections import Counter

from benchmarks.campaign import commands, requests


def run_requests(arguments: argparse.Namespace) -> int:
    """Run random requests; print each that ended otherwise than it may."""
    endings: Counter[tuple[str, str]] = Counter()
    ran = requests.campaign(
        arguments.seed,
        arguments.requests,
        compiled=arguments.what == "models",
        first=arguments.first,
    )
    for number, request, ending in ran:
        how = "fault" if ending.fault else ending.how
        endings[request.mechanism, how] += 1
        if arguments.refusals and ending.said:
            line = f"request {number}: {request.mechanism} refused: {ending.said}"
            print(line, flush=True)
        if ending.fault:
            print(f"request {number}: {ending.fault}\n{request.code()}\n", flush=True)
    print(requests.summary(endings))
    return sum(n for (_, how), n in endings.items() if how == "fault")


def run_commands(arguments: argparse.Namespace) -> int:
    """Run random command lines; print each that ended otherwise than it may."""
    codes: Counter[int] = Counter()
    n_faults = 0
    ran = commands.campaign(arguments.seed, arguments.requests, first=arguments.first)
    for number, words, ending in ran:
        codes[ending.code] += 1
        if ending.fault:
            n_faults += 1
            print(f"command {number}: {ending.fault}\npdips {words!r}\n", flush=True)
    for code, count in sorted(codes.items()):
        print(f"exit {code}: {count}")
    return n_faults


def main() -> None:
    """Read the command line, run, and exit with 1 if there is a fault."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.campaign")
    parser.add_argument("what", choices=("requests", "models", "commands"))
    parser.add_argument("--requests", type=int, default=200, help="how many")
    parser.add_argument("--seed", type=int, default=1, help="of what is asked")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument(
        "--refusals", action="store_true", help="print what is refused, and why"
    )
    arguments = parser.parse_args()
    start = time.process_time()
    run = run_commands if arguments.what == "commands" else run_requests
    n_faults = run(arguments)
    seconds = time.process_time() - start
    print(
        f"{arguments.requests} {arguments.what} from seed {arguments.seed}: "
        f"{n_faults} faults, {seconds:.0f} CPU seconds"
    )
    sys.exit(n_faults > 0)


if __name__ == "__main__":
    main()
