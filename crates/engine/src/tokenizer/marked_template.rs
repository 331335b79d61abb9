//! A chat template that marks answers with `{% generation %}`, made from one that does not.
//!
//! Trainers that learn answers only ask for these marks (TRL's `assistant_only_loss`). Many templates write each message as fixed
//! text, the content, and fixed text again. Those texts are read off a few renderings; what comes of them is held against the
//! template itself on other chats, and is nothing where a single character differs.

use serde_json::json;

use super::chat_template::{ChatTemplate, DEFAULT, GenerationPrompt};
use super::special_tokens::SpecialTokens;

/// Texts around the content of a message.
struct Turn {
    before: String,
    after: String,
    /// Whether white space at the ends of the content is left out.
    is_trimmed: bool,
}

/// The texts of a template that writes all messages of a role alike.
struct Turns {
    /// Text before the first message, where that is none of the system's.
    opening: String,
    /// The system's message, which comes first, with what opens the chat; `None` where the template refuses one.
    system: Option<Turn>,
    user: Turn,
    /// Opens an answer, and is not learnt.
    prompt: String,
    /// The answer behind the prompt; all of it is learnt.
    answer: Turn,
}

/// The template as Jinja with marks, whose renderings are the same to the last character; `None` where it writes messages of a role
/// in different ways, or cannot be read off. Tools are left out.
pub fn marked_template(template: &ChatTemplate) -> Option<String> {
    let turns = Turns::of(template)?;
    let text = turns.to_jinja();
    agrees(template, &text, turns.system.is_some()).then_some(text)
}

impl Turns {
    fn of(template: &ChatTemplate) -> Option<Self> {
        const SYSTEM: &str = "zqxsystem";
        const FIRST: &str = "zqxfirst";
        const ANSWER: &str = "zqxanswer";
        const SECOND: &str = "zqxsecond";
        let render = |messages: &[(&str, &str)]| render(template, messages, GenerationPrompt::Omit);
        let asked = render(&[("user", FIRST)])?;
        let prompted = self::render(template, &[("user", FIRST)], GenerationPrompt::Add)?;
        let prompt = prompted.strip_prefix(&asked)?;
        let answered = render(&[("user", FIRST), ("assistant", ANSWER)])?;
        let again = render(&[("user", FIRST), ("assistant", ANSWER), ("user", SECOND)])?;
        let (head, user_after) = asked.split_once(FIRST)?;
        let (answer_before, answer_after) = answered.strip_prefix(&asked)?.split_once(ANSWER)?;
        let (user_before, _) = again.strip_prefix(&answered)?.split_once(SECOND)?;
        let system = render(&[("system", SYSTEM), ("user", FIRST)]).and_then(|text| {
            let (before, rest) = text.split_once(SYSTEM)?;
            let after = rest.strip_suffix(&format!("{user_before}{FIRST}{user_after}"))?;
            Some((before.to_owned(), after.to_owned()))
        });
        let trims = |messages: &[(&str, &str)]| Some(!render(messages)?.contains(" zqx "));
        let turn = |(before, after): (&str, &str), is_trimmed| Turn {
            before: before.to_owned(),
            after: after.to_owned(),
            is_trimmed,
        };
        Some(Self {
            opening: head.strip_suffix(user_before)?.to_owned(),
            user: turn((user_before, user_after), trims(&[("user", " zqx ")])?),
            answer: turn(
                (answer_before.strip_prefix(prompt)?, answer_after),
                trims(&[("user", FIRST), ("assistant", " zqx ")])?,
            ),
            system: match system {
                Some((before, after)) => {
                    let is_trimmed = trims(&[("system", " zqx "), ("user", FIRST)])?;
                    Some(turn((&before, &after), is_trimmed))
                }
                None => None,
            },
            prompt: prompt.to_owned(),
        })
    }

    fn to_jinja(&self) -> String {
        let first = match &self.system {
            Some(system) => system.to_jinja("messages[0]"),
            None => "raise_exception('this chat template takes no system message')".to_owned(),
        };
        let (opening, prompt) = (literal(&self.opening), literal(&self.prompt));
        let (user, answer) = (self.user.to_jinja("message"), self.answer.to_jinja("message"));
        format!(
            "{{#- The model's own chat template, with marks around what is learnt. Written by peft-tune. -#}}\n\
             {{%- if messages[0]['role'] == 'system' -%}}\n{{{{- {first} -}}}}\n{{%- else -%}}\n{{{{- {opening} -}}}}\n\
             {{%- endif -%}}\n{{%- for message in messages -%}}\n{{%- if message['role'] == 'user' -%}}\n{{{{- {user} -}}}}\n\
             {{%- elif message['role'] == 'assistant' -%}}\n{{{{- {prompt} -}}}}\n{{%- generation -%}}\n{{{{- {answer} -}}}}\n\
             {{%- endgeneration -%}}\n{{%- elif message['role'] != 'system' or not loop.first -%}}\n\
             {{{{- raise_exception('this chat template takes messages of system (first), user and assistant') -}}}}\n\
             {{%- endif -%}}\n{{%- endfor -%}}\n{{%- if add_generation_prompt -%}}\n{{{{- {prompt} -}}}}\n{{%- endif -%}}\n"
        )
    }
}

impl Turn {
    /// The message as a Jinja expression.
    fn to_jinja(&self, message: &str) -> String {
        let content = match self.is_trimmed {
            true => format!("({message}['content'] | trim)"),
            false => format!("{message}['content']"),
        };
        format!("{} + {content} + {}", literal(&self.before), literal(&self.after))
    }
}

/// A Jinja string.
fn literal(text: &str) -> String {
    let escaped = text.replace('\\', "\\\\").replace('\'', "\\'");
    let escaped = escaped.replace('\n', "\\n").replace('\r', "\\r").replace('\t', "\\t");
    format!("'{escaped}'")
}

fn render(template: &ChatTemplate, messages: &[(&str, &str)], prompt: GenerationPrompt) -> Option<String> {
    let chat = conversation(messages);
    let rendered = template
        .conversation(&chat, None)
        .ok()?
        .render(chat.len(), prompt)
        .ok()?;
    Some(rendered.text)
}

fn conversation(messages: &[(&str, &str)]) -> Vec<serde_json::Value> {
    let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
    messages.iter().map(message).collect()
}

/// Whether the marked template renders chats as the original does, and marks each of their answers.
fn agrees(template: &ChatTemplate, marked: &str, has_system: bool) -> bool {
    const CHATS: [&[(&str, &str)]; 4] = [
        &[("user", "How?"), ("assistant", "So.")],
        &[
            ("user", " two\n\nlines \n"),
            ("assistant", "\n it's\t\"so\" \n"),
            ("user", "{{ x }} \\n é"),
            ("assistant", "<think>a</think>\n\nb"),
            ("user", ""),
            ("assistant", "c"),
        ],
        &[("system", " Be brief.\n"), ("user", "How?"), ("assistant", "So.")],
        &[
            ("system", ""),
            ("user", "How?"),
            ("assistant", "So."),
            ("user", "And?"),
            ("assistant", "<think>a</think>b"),
        ],
    ];
    // All special tokens stand in the texts themselves.
    let templates = [(DEFAULT.to_owned(), marked.to_owned())];
    let Ok(marked) = ChatTemplate::new(&templates, &SpecialTokens::default(), "the marked template") else {
        return false;
    };
    let chats = CHATS.iter().filter(|chat| has_system || chat[0].0 != "system");
    chats.into_iter().all(|chat| {
        let prompts = [GenerationPrompt::Omit, GenerationPrompt::Add];
        prompts.into_iter().all(|prompt| {
            let messages = conversation(chat);
            let rendered = marked
                .conversation(&messages, None)
                .and_then(|chat| chat.render(messages.len(), prompt));
            let answers = chat.iter().filter(|(role, _)| *role == "assistant").count();
            rendered.is_ok_and(|rendered| {
                let spans = rendered.generated.map_or(0, |spans| spans.len());
                Some(rendered.text) == render(template, chat, prompt) && spans == answers
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(source: &str) -> Option<String> {
        let templates = [(DEFAULT.to_owned(), source.to_owned())];
        marked_template(&ChatTemplate::new(&templates, &SpecialTokens::default(), "test").unwrap())
    }

    #[test]
    fn a_template_of_fixed_texts_gets_marks() {
        let chatml = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + \
                      '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        let text = marked(chatml).unwrap();
        assert!(
            text.contains("{%- generation -%}\n{{- '' + message['content'] + '<|im_end|>\\n' -}}"),
            "{text}"
        );
    }

    #[test]
    fn contents_that_are_trimmed_stay_so() {
        let trimming = "{{ 'B' }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]\
                        {{ m.content | trim }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
        let text = marked(trimming).unwrap();
        assert!(
            text.contains("(message['content'] | trim)") && text.contains("no system message"),
            "{text}"
        );
    }

    #[test]
    fn a_template_that_changes_earlier_turns_is_left_alone() {
        let changing = "{% for m in messages %}[{{ m.role }}]{{ m.content.split('</think>')[-1] if not loop.last else m.content }};\
                        {% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
        assert_eq!(marked(changing), None);
    }
}
