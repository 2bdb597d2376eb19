#!/usr/bin/env python3
"""How many tokens a second several answers get at once, beside one alone. A server is asked about as many documents as
there are answers, made of TEXT by cutting it up; each question is asked once before, so that the documents are read.

  together.py URL TEXT [--answers 4] [--characters 16000] [--tokens 128] [--repeat 3]
"""
import argparse
import json
import statistics
import threading
import time
import urllib.request


def ask(url, document, tokens):
    """Asks about a document: when each of its tokens came."""
    body = {"messages": [{"role": "user", "content": document + "\n\nWhat is this about?"}], "temperature": 0,
            "max_tokens": tokens, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    times = []
    with urllib.request.urlopen(request) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event["choices"] and event["choices"][0]["delta"].get("content"):
                times.append(time.monotonic())
    return times


def rate(answers):
    """Tokens a second while all of the answers were under way."""
    begin = max(times[0] for times in answers)
    end = min(times[-1] for times in answers)
    return sum(1 for times in answers for at in times if begin < at <= end) / (end - begin)


def at_once(url, documents, tokens):
    answers = [None] * len(documents)

    def one(nth):
        answers[nth] = ask(url, documents[nth], tokens)

    threads = [threading.Thread(target=one, args=(nth,)) for nth in range(len(documents))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("text")
    parser.add_argument("--answers", type=int, default=4)
    parser.add_argument("--characters", type=int, default=16000, help="of each document")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    step = max(1, (len(text) - args.characters) // max(1, args.answers - 1))
    documents = [f"Part {nth}.\n" + text[nth * step:nth * step + args.characters] for nth in range(args.answers)]
    for document in documents:
        ask(args.url, document, 8)
    ratios = []
    for _ in range(args.repeat):
        alone = rate([ask(args.url, documents[0], args.tokens)])
        together = rate(at_once(args.url, documents, args.tokens))
        ratios.append(together / alone)
        print(f"alone {alone:.1f} token/s, {args.answers} at once {together:.1f} token/s: {ratios[-1]:.2f} times")
    print(f"median: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
