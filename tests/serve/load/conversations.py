#!/usr/bin/env python3
"""Several long conversations in turn, against a server that speaks OpenAI's API: what reading each again would cost.

    conversations.py --url http://127.0.0.1:8080 --text book.txt [--conversations 8] [--bytes 16000] [--turns 3]

Each conversation begins with a part of the text of its own, and a question. Then each gets another question in turn,
so that a server without room for all of them has to come back to one that it has not seen for a while. Printed are the
times of whole answers, of the first round (in which every text is read) and of the later ones (medians), and tokens that
were not read again where the server says so.
"""
import argparse
import json
import statistics
import time
import urllib.request

QUESTIONS = [
    "What is this about?",
    "Who is named in it?",
    "Where does it take place?",
    "How does it end?",
    "What is the mood of it?",
]


def ask(url, messages, max_tokens, model):
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    if model:
        body["model"] = model
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    begin = time.monotonic()
    first, text, usage = None, "", {}
    with urllib.request.urlopen(request, timeout=3600) as reply:
        for line in reply:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            usage = event.get("usage") or usage
            for choice in event.get("choices", []):
                piece = choice["delta"].get("content")
                if piece and first is None:
                    first = time.monotonic() - begin
                text += piece or ""
    return {"text": text, "first_s": first, "all_s": time.monotonic() - begin, "usage": usage}


def median(rounds, key):
    return statistics.median(answer[key] for answer in rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--conversations", type=int, default=8)
    parser.add_argument("--bytes", type=int, default=16000, help="of the text, for each conversation")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--model", default="")
    args = parser.parse_args()
    with open(args.text, encoding="utf-8") as file:
        text = file.read()
    if len(text) < args.conversations * args.bytes:
        parser.error("the text is too short for so many conversations")
    conversations = [[] for _ in range(args.conversations)]
    rounds = []
    for turn in range(args.turns):
        answers = []
        for i, messages in enumerate(conversations):
            question = QUESTIONS[(turn + i) % len(QUESTIONS)]
            part = text[i * args.bytes:(i + 1) * args.bytes] + "\n\n" if turn == 0 else ""
            messages.append({"role": "user", "content": part + question})
            answer = ask(args.url, messages, args.max_tokens, args.model)
            messages.append({"role": "assistant", "content": answer["text"]})
            answers.append(answer)
        rounds.append(answers)
        usage = answers[0]["usage"]
        print(f"round {turn + 1}: first token after {median(answers, 'first_s'):.2f} s, answer after "
              f"{median(answers, 'all_s'):.2f} s (medians of {len(answers)}); of the first conversation "
              f"{usage.get('prompt_tokens')} tokens, cached "
              f"{(usage.get('prompt_tokens_details') or {}).get('cached_tokens')}", flush=True)
    later = [answer for answers in rounds[1:] for answer in answers]
    if later:
        print(f"a later question is answered {median(rounds[0], 'all_s') / median(later, 'all_s'):.1f} times sooner than "
              f"the first, its first token comes {median(rounds[0], 'first_s') / median(later, 'first_s'):.1f} times sooner")


if __name__ == "__main__":
    main()
