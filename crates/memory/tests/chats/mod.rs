//! Generates synthetic conversations: two named people in many parts, with facts in one wording,
//! questions about them in another, and greetings, small talk and near misses between. The same
//! seed gives the same conversation.
#![allow(dead_code, missing_docs, clippy::unwrap_used)]

/// A line of a conversation.
#[derive(Debug, Clone)]
pub struct ChatLine {
    pub key: String,
    pub part: String,
    pub speaker: String,
    pub ts: String,
    pub text: String,
}

/// A question, and the keys of the lines that answer it.
#[derive(Debug, Clone)]
pub struct SampleQuestion {
    pub text: String,
    pub evidence: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct SampleChat {
    pub lines: Vec<ChatLine>,
    pub questions: Vec<SampleQuestion>,
}

/// A pseudo-random number generator: the same seed gives the same numbers.
pub struct SeededRandom(pub u64);

impl SeededRandom {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let x = (self.0 >> 33) ^ self.0;
        x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 20
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    pub fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

const NAMES: &[&str] = &[
    "Caroline", "Melanie", "Jon", "Gina", "Maria", "Deborah", "Nate", "Audrey", "Evan", "Tim",
];
const PLACES: &[&str] = &[
    "Boston",
    "Lisbon",
    "the lake house",
    "Yosemite",
    "Kyoto",
    "Chicago",
    "the old library",
    "Oslo",
];
const MONTHS: &[&str] = &[
    "January", "March", "May", "June", "August", "October", "November",
];
const WHO: &[&str] = &[
    "my sister",
    "my neighbour",
    "an old classmate",
    "my cousin Rob",
    "the kids",
    "my manager",
    "a colleague",
];

/// Facts, each with a question about it in other words. `{p}` is a place, `{m}` a month, `{w}` a
/// person, `{n}` a number, `{s}` the speaker.
const FACTS: &[(&str, &str)] = &[
    (
        "I finally signed up for a pottery class in {p}, it starts in {m}",
        "When does {s} start making ceramics, and at which class?",
    ),
    (
        "We adopted a puppy from the shelter in {p} and called her Biscuit{n}",
        "What is the name of the dog {s} adopted?",
    ),
    (
        "I ran the charity race in {p} in {m} and raised {n} dollars",
        "How much money did {s} raise at the race in {p}?",
    ),
    (
        "My grandmother gave me a necklace that comes from {p}",
        "What did {s} get from her grandmother?",
    ),
    (
        "I went camping with {w} near {p} and it rained for {n} days",
        "Where did {s} go camping?",
    ),
    (
        "I applied for the counselling certificate, the interview is in {m}",
        "Which certificate is {s} applying for?",
    ),
    (
        "I burned the lasagne at the dinner for {w}, so we ordered pizza",
        "What happened to the lasagne {s} cooked?",
    ),
    (
        "I have been painting a mural at {p} for {n} weeks now",
        "How long has {s} worked on the mural?",
    ),
    (
        "The doctor in {p} says my knee needs surgery in {m}",
        "When is the knee surgery of {s}?",
    ),
    (
        "I bought a used telescope and saw Saturn from {p}",
        "What did {s} see through the telescope?",
    ),
    (
        "I quit my banking job and will open a bakery in {p}",
        "What business does {s} want to open after the bank?",
    ),
    (
        "I learned to play the clarinet because of {w}",
        "Which instrument did {s} learn?",
    ),
    (
        "We planted {n} cherry trees behind the house in {m}",
        "How many trees did {s} plant?",
    ),
    (
        "My novel was rejected by {n} publishers before one in {p} took it",
        "How many publishers turned {s} down?",
    ),
    (
        "I met {w} at the chess tournament in {p}",
        "Whom did {s} meet at the chess tournament?",
    ),
    (
        "My car broke down on the bridge to {p}, the gearbox was gone",
        "What was broken in the car of {s}?",
    ),
];

/// Small talk that answers no question. Some of it contains words of the questions. `{o}` is the
/// other person.
const TALK: &[&str] = &[
    "Hey {o}! Good to see you! How are you doing these days?",
    "Wow {o}, that's really great to hear! I'm so proud of you!",
    "Thanks {o}! It means a lot to me that you say that.",
    "I know what you mean, work has been crazy for me as well lately.",
    "That sounds fun. Did you take any pictures?",
    "Have you ever thought about starting a class or a business yourself, {o}?",
    "I love how a walk clears the head after a long day.",
    "Take care {o}, talk to you soon!",
    "My weekend was quiet, just some cooking and an old film.",
    "Money is tight everywhere, I guess, and races are for the young.",
    "Dogs are the best, aren't they? Ours sleeps all day.",
    "Yeah, instruments are expensive, but music is worth it.",
    "I saw a picture of a telescope the other day and thought of you, {o}.",
    "What a week! I hope the next one has fewer meetings.",
    "Sometimes the doctor is the last one who knows.",
    "It's lovely how trees change in autumn.",
];

/// Generates a conversation with this many parts.
pub fn chat(seed: u64, parts: usize) -> SampleChat {
    let mut random = SeededRandom(seed.wrapping_mul(7919).wrapping_add(17));
    let first = random.below(NAMES.len());
    let names = [
        NAMES[first],
        NAMES[(first + 1 + random.below(NAMES.len() - 1)) % NAMES.len()],
    ];
    let (mut lines, mut questions) = (Vec::new(), Vec::new());
    for part in 1..=parts {
        let length = 12 + random.below(16);
        let day = format!(
            "{:04}-{:02}-{:02}",
            2023 + part / 336,
            part / 28 % 12 + 1,
            part % 28 + 1
        );
        for at in 1..=length {
            let (me, other) = (names[at % 2], names[(at + 1) % 2]);
            let key = format!("D{part}:{at}");
            let fill = |text: &str, random: &mut SeededRandom| {
                let number = (random.below(90) + 3).to_string();
                let place = random.pick(PLACES);
                let text = text
                    .replace("{p}", place)
                    .replace("{m}", random.pick(MONTHS))
                    .replace("{w}", random.pick(WHO));
                (
                    text.replace("{n}", &number)
                        .replace("{o}", other)
                        .replace("{s}", me),
                    place,
                )
            };
            let text = if random.below(5) == 0 && at > 1 {
                let (fact, question) = FACTS[random.below(FACTS.len())];
                let (fact, place) = fill(fact, &mut random);
                let question = question.replace("{s}", me).replace("{p}", place);
                questions.push(SampleQuestion {
                    text: question,
                    evidence: vec![key.clone()],
                });
                let lead = random.pick(&[
                    "",
                    "Guess what! ",
                    "Oh, before I forget: ",
                    "You won't believe it. ",
                ]);
                format!(
                    "{lead}{fact}{}",
                    random.pick(&[
                        ".",
                        "! Can you imagine?",
                        ", and I could not be happier.",
                        "."
                    ])
                )
            } else {
                fill(random.pick(TALK), &mut random).0
            };
            let ts = format!("{day}T{:02}:{:02}:00Z", 9 + at / 60, at % 60);
            lines.push(ChatLine {
                key,
                part: format!("session_{part}"),
                speaker: me.to_owned(),
                ts,
                text,
            });
        }
    }
    // The same question may have several answers: all of them are evidence.
    let mut merged: Vec<SampleQuestion> = Vec::new();
    for question in questions {
        match merged.iter_mut().find(|known| known.text == question.text) {
            Some(known) => known.evidence.extend(question.evidence),
            None => merged.push(question),
        }
    }
    SampleChat {
        lines,
        questions: merged,
    }
}
