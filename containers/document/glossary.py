"""The meanings of the report's words, shown at the end of the page and as the tooltip of each word."""

from containers.contracts.records import SCORE_TOLERANCE

GLOSSARY = {
    "accuracy": "Share of held-out pairs to which the reward model gives the chosen completion the higher score; equal "
    "scores count half. Guessing gives 50 %.",
    "pair": "A prompt with two completions, one preferred (chosen) to the other (rejected).",
    "score": "Raw output of the reward model for a prompt with a completion. Only differences mean something.",
    "margin": "Score of the chosen minus score of the rejected completion. Above zero: the order is right.",
    "reward": "What the policy is trained to raise: here the reward model's score, without the KL term.",
    "reward gain": "Mean over held-out prompts of the policy's reward minus the reference's reward on the same prompt.",
    "judge": "Compares what policy and reference wrote on held-out prompts. Only the word of one that took no part in "
    "training is evidence: a policy also learns to please what its rewards get wrong.",
    "win rate": "Share of held-out prompts on which the policy's completion scores above the reference's, by the same "
    f"rewards or judge. A tie counts half: the same text, or scores no more than {SCORE_TOLERANCE:g} apart, which "
    "rounding alone can make.",
    "identical completions": "Share of completions that are, word for word, what the reference wrote on the same "
    "prompt with the same seed. Near 100 % the policy has hardly moved.",
    "KL": "How far the policy has moved from its reference: mean over sampled completions of the difference of their "
    "log probabilities, in nats. 0 is no difference.",
    "reference": "The model from which policy training started, unchanged.",
    "entropy": "How undecided the policy is at each token, in nats. A fall to zero means it always writes the same.",
    "held-out loss": "Mean over the tokens of held-out answers of −log of the probability that the model gives them, "
    "in nats. Lower is better.",
    "calibration": "Whether pairs predicted to be right with 80 % are right in 80 % of cases.",
    "calibration error": "Expected calibration error, without what chance adds: mean gap of predicted and observed "
    "share over bins of at least 20 prompts, weighted by pairs. Its interval is over prompts; from 0 on, the model may "
    "be calibrated. It cannot see gaps inside a bin that cancel, nor say that other data have the same error.",
    "plug-in calibration error": "The mean gap as counted, chance included: above 0 for every model, and more so for "
    "few prompts. A perfect model's is simulated from this model's own probabilities: its mean, and what 19 of 20 "
    "perfect models stay below.",
    "standard set": "Questions with a rule that says which answers are right; all models of a run get the same ones.",
    "suite": "Pairs and a rule that a reward model is judged by; the score is the rule's figure.",
    "length effect": "How much an edit of the same answer moves its score per doubling of its length: filler after it "
    "(padding), its own sentences again (repetition), more or fewer words for the same content (rewriting). In "
    "standard deviations of the scores, so that models can be compared. Above zero: the model rewards length itself.",
    "length slope": "How margin and length go together, given these labels: the slope of margin on the log of the "
    "length ratio within a prompt, beside an intercept, in standard deviations of the scores per doubling. It also "
    "holds what quality and the labels have to do with length, so 0 is not the same as no bias.",
    "accuracy at equal lengths": "Accuracy of the margins without the part that the length slope explains: a linear "
    "correction given these labels. It takes quality that goes with length away, too, so bound the length effect and "
    "the padding attack in gates, not this.",
    "padding attack": "Filler without content is appended to answers. A flip: the padded answer then scores as high as "
    "the other one, or higher. The rule counts filler on rejected answers of pairs in the right order.",
    "score parity": "How nearly all code paths give a conversation one score: training, reloaded copies, any batch "
    "size, the policy stage. Rounding moves scores a little, in bfloat16 by some percent. So the page says within what "
    "share of a typical margin (their root mean square) they are equal, and how many pairs change their order. Beyond "
    "its bounds the policy would be trained against other scores than those judged here.",
    "log loss": "Mean negative log probability that the model gave to the true order; guessing gives 0.693 nats. "
    "It excludes the centring penalty and the demanded margin, which the loss of training includes.",
    "interval": "Confidence interval over prompts: exact binomial for shares, for as many independent observations as "
    "the prompts are worth; Student's t for means and for the length slope. At the level that the configuration "
    "calls confidence (95 % unless set there).",
    "measured, estimated": "Measured: counted or timed in this run. Estimated: computed from a model of what happens; "
    "such figures are marked.",
    "gate": "Rules that a model must meet before the run goes on. A waiver overrules them; this report shows it.",
    "decision": "A person's answer at a gate. It counts only for the model, figures and rules that were shown; silence "
    "never approves.",
    "champion": "The version that is in use. A challenger is compared with it on the same held-out items, which were "
    "frozen with the first champion.",
    "duration": "Sum of the times of the stages that ran, each of its last attempt; reused stages cost nothing.",
    "digest": "SHA-256 over the content. Equal digests are equal files.",
}
