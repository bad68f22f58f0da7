//! One command of the tables, as it was typed: its request is filled by the paths of its arguments, and
//! the method is called by its descriptor.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::{ArgMatches, FromArgMatches};
use prost::Message;
use prost_reflect::{DynamicMessage, MethodDescriptor, ReflectMessage, Value};
use ring::rand::{SecureRandom, SystemRandom};
use rlaas_client::ApiChannel;
use rlaas_proto::is_lowering;
use rlaas_proto::json::POOL;
use rlaas_proto::ratelimit::admin::v1::KeyPart;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status};

use crate::argument::Argument;
use crate::call::{
    CallArgs, CommandError, CommandOutput, MAX_RESPONSE, confirm, confirm_lowering, is_confirmed,
    repeated,
};
use crate::codec::DynamicCodec;
use crate::command::{self, CommandSpec};
use crate::lines::RuleFields;
use crate::output::{self, Exchange};
use crate::parse::Input;
use crate::{fields, parse, text, wrong_arguments};

/// The method that shows the keys of a selector.
const INSPECT: &str = "AdminService.Inspect";
/// Largest page of a list.
const MAX_PAGE: u64 = 1_000;

/// A command of the tables with its arguments, and the request that they make.
#[derive(Debug)]
pub struct Invocation<'a> {
    spec: &'static CommandSpec,
    matches: &'a ArgMatches,
    request: DynamicMessage,
    rule_fields: RuleFields,
}

impl<'a> Invocation<'a> {
    /// Returns the command that was typed, if the tables have it.
    ///
    /// # Errors
    ///
    /// If the system has no random numbers for the id of the request.
    pub fn read(matches: &'a ArgMatches, rule_fields: RuleFields) -> anyhow::Result<Option<Self>> {
        let (mut words, mut innermost) = (Vec::new(), matches);
        while let Some((word, below)) = innermost.subcommand() {
            words.push(word);
            innermost = below;
        }
        let words = words.join(" ");
        let Some(mut spec) = command::find(&words) else { return Ok(None) };
        for (condition, other) in &spec.instead {
            if holds(condition, innermost) {
                spec = command::find(other).unwrap_or(spec);
            }
        }
        let request = DynamicMessage::new(method(&spec.method).input());
        let mut invocation = Self { spec, matches: innermost, request, rule_fields };
        invocation.fill()?;
        Ok(Some(invocation))
    }

    /// Returns the words of the command.
    pub fn words(&self) -> &'static str {
        &self.spec.words
    }

    /// Returns the text of an argument, if it was given.
    pub fn text(&self, id: &str) -> Option<&str> {
        match self.matches.try_get_one::<Input>(id) {
            Ok(Some(Input::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// Returns the request as its generated type.
    pub fn request<M: Message + Default>(&self) -> M {
        fields::typed(&self.request)
    }

    /// Replaces the request.
    ///
    /// # Panics
    ///
    /// If it is of another type.
    pub fn set_request(&mut self, request: &impl Message) {
        let request = DynamicMessage::decode(self.request.descriptor(), &*request.encode_to_vec());
        self.request = request.expect("the bytes of a request of the same type");
    }

    /// Calls the method, and prints the answer. Returns exit code 0 with an answer, 1 if the person
    /// at the terminal said no, and 2 otherwise.
    pub fn run(self) -> ExitCode {
        match CallArgs::from_arg_matches(self.matches) {
            Ok(call) => call.run_on(async |channel| self.answer(channel).await),
            Err(error) => wrong_arguments(&error),
        }
    }

    /// Fills the request.
    fn fill(&mut self) -> anyhow::Result<()> {
        for (path, value) in &self.spec.fixed {
            let input =
                if value == "true" { Input::Flag(true) } else { Input::Text(value.clone()) };
            fields::set(&mut self.request, path, &input);
        }
        for argument in self.spec.all_arguments().filter(|argument| !argument.field.is_empty()) {
            let mut inputs = self.inputs(argument);
            if argument.id() == USER && argument.field == "parts" {
                inputs = inputs.into_iter().map(user_part).collect();
            }
            if argument.field == "request_id" && inputs.is_empty() {
                inputs.push(Input::Text(random_id()?));
            }
            let masked =
                self.spec.masked.as_ref().and_then(|masked| argument.field.strip_prefix(masked));
            if let Some(path) = masked.filter(|_| argument.is_option() && !inputs.is_empty()) {
                let path = Input::Text(path.to_owned());
                fields::set(&mut self.request, "update_mask.paths", &path);
            }
            match argument.field.split_once('|') {
                Some((first, rest)) => self.set_first_and_rest(first, rest, &inputs)?,
                None => inputs.iter().for_each(|input| {
                    fields::set(&mut self.request, &argument.field, input);
                }),
            }
        }
        Ok(())
    }

    /// Sets a field to the first text, and adds the pairs after it to a list.
    fn set_first_and_rest(
        &mut self,
        first: &str,
        rest: &str,
        inputs: &[Input],
    ) -> anyhow::Result<()> {
        for (at, input) in inputs.iter().enumerate() {
            match input {
                Input::Text(text) if at > 0 => {
                    let entry = parse::descriptor_entry(text)?;
                    fields::set(&mut self.request, rest, &Input::Message(entry.encode_to_vec()));
                }
                input => fields::set(&mut self.request, first, input),
            }
        }
        Ok(())
    }

    /// Returns the values of an argument.
    fn inputs(&self, argument: &Argument) -> Vec<Input> {
        let id = argument.id();
        if argument.flag {
            let is_given = self.matches.get_flag(id);
            return is_given.then_some(Input::Flag(true)).into_iter().collect();
        }
        self.matches.get_many(id).into_iter().flatten().cloned().collect()
    }

    async fn answer(mut self, channel: ApiChannel) -> Result<CommandOutput, CommandError> {
        if let Some(question) = &self.spec.question {
            self.confirm(&channel, question).await?;
        }
        let (response, metadata) = match self.all_pages(channel.clone()).await {
            Err(CommandError::Status(refused)) if is_lowering(&refused) => {
                confirm_lowering(has_flag(self.matches, "yes"), &refused)?;
                self.request.clear_field_by_name("raise_only");
                self.all_pages(channel).await?
            }
            answered => answered?,
        };
        let rule_fields = self.rule_fields;
        let exchange = Exchange { request: self.request, response, rule_fields };
        let lines = match &self.spec.rows {
            Some(_) if has_flag(self.matches, "csv") => output::csv_of(&exchange.response).into(),
            _ => output::lines(self.spec, &exchange),
        };
        let mut output = CommandOutput::new(&exchange.response, lines.text);
        output.found_nothing = lines.found_nothing && !has_flag(self.matches, "missing-ok");
        Ok(output.with_warning(lines.warning).with_warning_of(&metadata))
    }

    /// Asks a person at a terminal before the change.
    async fn confirm(&self, channel: &ApiChannel, question: &str) -> Result<(), CommandError> {
        if is_confirmed(self.matches.get_flag("yes")) {
            return Ok(());
        }
        let mut question = question.to_owned();
        for argument in self.spec.all_arguments().filter(|argument| !argument.flag) {
            let shown = match self.inputs(argument).first() {
                Some(Input::Text(name)) => text::value(&name.to_lowercase().replace(SOURCE, "")),
                Some(Input::Number(number)) => number.to_string(),
                _ => continue,
            };
            question = question.replace(&format!("{{{}}}", argument.id()), &shown);
        }
        if question.contains("{keys}") {
            let mut request = DynamicMessage::new(method(INSPECT).input());
            if let Some(selector) = self.request.get_field_by_name("selector") {
                request.set_field_by_name("selector", selector.into_owned());
            }
            let (response, _) = call(channel.clone(), INSPECT, request).await?;
            let keys = fields::messages(&response, "keys").len();
            eprint!("{}", crate::keys::states(&response));
            question = question.replace("{keys}", &text::count(keys as u64, "key"));
        }
        confirm(&question)
    }

    /// Calls the method. Of a list reads pages up to the most rows; the token is that of the rest.
    async fn all_pages(
        &self,
        channel: ApiChannel,
    ) -> Result<(DynamicMessage, MetadataMap), CommandError> {
        let is_list = self.request.descriptor().get_field_by_name("page_token").is_some();
        let Some(path) = self.spec.rows.as_ref().filter(|_| is_list) else {
            return call(channel, &self.spec.method, self.request.clone()).await;
        };
        let max = match self.matches.try_get_one::<Input>("max") {
            Ok(Some(Input::Number(max))) => *max,
            _ => u64::MAX,
        };
        let (mut request, mut rows) = (self.request.clone(), Vec::new());
        loop {
            let left = max.saturating_sub(rows.len() as u64).clamp(1, MAX_PAGE);
            fields::set(&mut request, "page_size", &Input::Number(left));
            let (mut page, metadata) =
                call(channel.clone(), &self.spec.method, request.clone()).await?;
            if let Some(Value::List(more)) = page.take_field_by_name(path) {
                rows.extend(more);
            }
            let token = fields::text(&page, "next_page_token");
            if token.is_empty() || rows.len() as u64 >= max {
                page.set_field_by_name(path, Value::List(rows));
                return Ok((page, metadata));
            }
            fields::set(&mut request, "page_token", &Input::Text(token));
        }
    }
}

/// Returns `true` if a flag was given. A command without it has none.
fn has_flag(matches: &ArgMatches, name: &str) -> bool {
    matches!(matches.try_get_one::<bool>(name), Ok(Some(true)))
}

/// Returns `true` if a flag is given, or an argument with a value (`project=-`); and, after `without`, none
/// of some arguments.
fn holds(condition: &str, matches: &ArgMatches) -> bool {
    let (given, others) = condition.split_once("without ").unwrap_or((condition, ""));
    let is_given = match given.trim_end().split_once('=') {
        Some((id, value)) => matches.get_one::<Input>(id) == Some(&Input::Text(value.to_owned())),
        None => given.is_empty() || matches.get_flag(given),
    };
    is_given && others.split_whitespace().all(|id| !matches.contains_id(id))
}

/// The argument with the user, which is a part of a key where a request has parts.
const USER: &str = "USER";

fn user_part(user: Input) -> Input {
    let Input::Text(user) = user else { return user };
    let part = KeyPart { name: "user_id".to_owned(), value: Some(user) };
    Input::Message(part.encode_to_vec())
}

/// What stands before the names of the catalogues in their enum.
const SOURCE: &str = "catalogue_source_";

/// Returns a method of the service or of its administration.
fn method(name: &str) -> MethodDescriptor {
    let (service, name) = name.split_once('.').expect("a method of the table");
    let service = POOL
        .get_service_by_name(&format!("ratelimit.admin.v1.{service}"))
        .or_else(|| POOL.get_service_by_name(&format!("ratelimit.v1.{service}")));
    let service = service.expect("a service of the table");
    let mut methods = service.methods();
    methods.find(|method| method.name() == name).expect("a method of the table")
}

/// Calls a method.
async fn call(
    channel: ApiChannel,
    name: &str,
    request: DynamicMessage,
) -> Result<(DynamicMessage, MetadataMap), CommandError> {
    let method = method(name);
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let path = PathAndQuery::from_maybe_shared(path).map_err(anyhow::Error::from)?;
    let grpc = Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE);
    let call = async || {
        let (mut grpc, codec) = (grpc.clone(), DynamicCodec(method.output()));
        grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        grpc.unary(Request::new(request.clone()), path.clone(), codec).await
    };
    let response = repeated(call).await?;
    let (metadata, message, _) = response.into_parts();
    Ok((message, metadata))
}

fn random_id() -> anyhow::Result<String> {
    let mut random = [0; 16];
    let filled = SystemRandom::new().fill(&mut random);
    filled.map_err(|_| anyhow!("no random numbers for --request-id"))?;
    Ok(format!("{:032x}", u128::from_be_bytes(random)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Asserts that the methods and fields of a command exist, and that values fit the fields.
    pub(crate) fn check(spec: &'static CommandSpec) {
        let method = method(&spec.method);
        let input = method.input();
        for argument in spec.all_arguments().filter(|argument| !argument.field.is_empty()) {
            for path in argument.field.split('|') {
                let mut message = input.clone();
                let names: Vec<&str> = path.split('.').collect();
                for (at, name) in names.iter().enumerate() {
                    let field = message.get_field_by_name(name);
                    let field = field.unwrap_or_else(|| panic!("{}: {path}", spec.words));
                    if at + 1 < names.len() {
                        message = field.kind().as_message().expect("a message on the way").clone();
                    }
                }
            }
        }
        let Some(path) = &spec.rows else {
            let _known = crate::lines::by_name(&spec.lines);
            return;
        };
        {
            let rows = method.output().get_field_by_name(path).expect("the field of the rows");
            let row = DynamicMessage::new(rows.kind().as_message().expect("messages").clone());
            let _shown = output::table(&spec.table, &[row]);
        }
    }
}
