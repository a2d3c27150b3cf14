"""How Kafka is reached: what a file may say, what is refused, and what each client makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from lakehouse.config import settings
from lakehouse.errors import SettingsError
from lakehouse.kafka.client_settings import Credentials, credentials, librdkafka_settings, spark_options
from lakehouse.kafka.connection import PROPERTIES, KafkaConnection, load_connection

HIDDEN = "hunter2"
# Made by openssl for this test alone.
PBES2_KEY = """-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAjTJ7CgDcZTmgICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEOr+QvX18b/573RpI8AO6r0EgZCH
hLY/nVEDxa3916hj3OqovxRDiVW2BQMrCZ+ZbBfqgmVEGo0UcS0ynBE+PBhctXLl
DYjD0KV3c12gpmAKsVoJBW0KKUP4H++/7ZS1tO28eou8KSZAsYBYeYLFMjbdCJ9r
Bf6bw+20DQwNfVD31lDumunOFQTLtsE2WKk9feFgqcdkjZiUeiwK74JDpF+J+C8=
-----END ENCRYPTED PRIVATE KEY-----
"""
SASL = """bootstrap_servers: broker-1:9092,broker-2:9092
security_protocol: SASL_SSL
sasl_mechanism: SCRAM-SHA-512
username: reader
password: {env: KAFKA_PASSWORD}
"""
REGISTRY = "bootstrap_servers: b:1\nschema_registry:\n"


def written(folder: Path, text: str) -> Path:
    file = folder / "kafka.yaml"
    file.write_text(text)
    return file


def test_a_file_becomes_a_connection_that_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", HIDDEN)
    connection = load_connection(written(tmp_path, SASL))
    secrets = credentials(connection)
    assert secrets.password == SecretStr(HIDDEN)
    assert HIDDEN not in f"{connection!r} {connection} {secrets!r} {secrets}"


def test_a_secret_is_read_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
    connection = load_connection(written(tmp_path, SASL))
    with pytest.raises(SettingsError, match="the variable KAFKA_PASSWORD is not set"):
        credentials(connection)


def test_both_clients_get_the_login(tmp_path: Path) -> None:
    connection = load_connection(written(tmp_path, SASL + "properties: {client.id: lakehouse}\n"))
    secrets = Credentials(username=SecretStr("reader"), password=SecretStr(HIDDEN))
    assert librdkafka_settings(connection, secrets) == {
        "bootstrap.servers": "broker-1:9092,broker-2:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "reader",
        "sasl.password": HIDDEN,
        "socket.timeout.ms": 30_000,
        "client.id": "lakehouse",
    }
    assert spark_options(connection, secrets, shaded=False) == {
        "kafka.bootstrap.servers": "broker-1:9092,broker-2:9092",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="reader" password="{HIDDEN}";',
        "kafka.request.timeout.ms": "30000",
        "kafka.default.api.timeout.ms": "30000",
        "kafka.client.id": "lakehouse",
        "kafkaConsumer.pollTimeoutMs": "30000",
        "fetchOffset.numRetries": "1",
    }


def test_on_databricks_the_login_module_is_the_shaded_one() -> None:
    connection = KafkaConnection(
        bootstrap_servers="b:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        username="u",
        password={"env": "P"},  # type: ignore[arg-type]  # as in YAML
    )
    jaas = spark_options(connection, Credentials(), shaded=True)["kafka.sasl.jaas.config"]
    assert jaas.startswith("kafkashaded.org.apache.kafka.common.security.plain.PlainLoginModule required ")


def test_signs_that_mean_something_to_jaas_are_escaped() -> None:
    connection = KafkaConnection(
        bootstrap_servers="b:1",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        username="u",
        password={"env": "P"},  # type: ignore[arg-type]  # as in YAML
    )
    secrets = Credentials(username=SecretStr("u"), password=SecretStr('a"b\\c\nd\re;'))
    assert spark_options(connection, secrets, shaded=False)["kafka.sasl.jaas.config"].endswith(
        r'username="u" password="a\"b\\c\nd\re;";'
    )


def test_both_clients_get_the_certificates(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "me.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN ENCRYPTED PRIVATE KEY-----\n")
    text = (
        f"bootstrap_servers: b:1\nsecurity_protocol: SSL\nca_file: {tmp_path}/ca.pem\n"
        f"client_certificate_file: {tmp_path}/me.pem\nclient_key_password: {{env: KEY_PASSWORD}}\n"
    )
    connection = load_connection(written(tmp_path, text))
    secrets = Credentials(key_password=SecretStr(HIDDEN))
    assert {name: value for name, value in librdkafka_settings(connection, secrets).items() if name[:3] == "ssl"} == {
        "ssl.ca.location": f"{tmp_path}/ca.pem",
        "ssl.certificate.location": f"{tmp_path}/me.pem",
        "ssl.key.location": f"{tmp_path}/me.pem",
        "ssl.key.password": HIDDEN,
    }
    options = spark_options(connection, secrets, shaded=False)
    assert {name: value for name, value in options.items() if name.startswith("kafka.ssl")} == {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": f"{tmp_path}/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": f"{tmp_path}/me.pem",
        "kafka.ssl.key.password": HIDDEN,
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("security_protocol: SSL", ":1: bootstrap_servers: no Kafka broker was given, neither here nor by"),
        ("", "not a map of settings. It may have: bootstrap_servers, "),
        (f"password: {HIDDEN}", "kafka.yaml:1: password: is given by reference: {env: NAME}"),
        (f"\npassword: {{{HIDDEN}}}", "kafka.yaml:2: password: is given by reference"),
        (f"password: *{HIDDEN}", "kafka.yaml:1: not valid YAML"),
        (f"password: !{HIDDEN} x", "kafka.yaml:1: not valid YAML"),
        (f"\npassword: {HIDDEN}\a", "kafka.yaml:2: not valid YAML"),
        (f"password: {{env: '{HIDDEN}!'}}", "password: is given by reference"),
        (f"username: [{HIDDEN}]", "username: is given as plain text or by reference"),
        (f"client_key_password: {HIDDEN}", "client_key_password: is given by reference"),
        (f"bootstrap_servers: b:1\nsasl_password: {HIDDEN}", "kafka.yaml:2: sasl_password: this key is not known"),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: TLS",
            "kafka.yaml:2: security_protocol: Input should be 'PLAINTEXT'",
        ),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: SASL_SSL\nusername: u",
            "SASL_SSL needs sasl_mechanism, password too",
        ),
        ("bootstrap_servers: b:1\nusername: u", "PLAINTEXT has no use for username: with a login it is SASL_SSL or"),
        ("bootstrap_servers: b:1\nca_file: ca.pem", "PLAINTEXT has no use for ca_file: with TLS it is SSL or SASL_SSL"),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: SSL\nclient_key_password: {env: A}",
            "client_key_password is of no use without client_certificate_file",
        ),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: SSL\nca_file: absent.pem",
            "ca_file: absent.pem cannot be read: No such",
        ),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: SSL\nca_file: kafka.yaml",
            "kafka.yaml does not hold a certificate",
        ),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: SSL\nclient_certificate_file: rsa.pem",
            "rsa.pem does not hold a PKCS#8 key without a password",
        ),
        (
            "bootstrap_servers: b:1\nsecurity_protocol: SSL\nclient_certificate_file: pbes2.pem\n"
            "client_key_password: {env: A}",
            "the key in pbes2.pem is encrypted by PBES2",
        ),
        ("bootstrap_servers: b:1\ntimeout_seconds: 1", "timeout_seconds: Input should be greater than or equal to 2"),
        ("schema_registry: http://u:hunter2@r", "kafka.yaml:1: schema_registry: is a map. It may have: url, username,"),
        ("schema_registry:\n  username: u", "kafka.yaml:1: schema_registry.url: no address of the schema registry was"),
        (
            f"{REGISTRY}  url: http://u:{HIDDEN}@r",
            "kafka.yaml:3: schema_registry.url: carries a user or a password: remove them, and give username and pass",
        ),
        (f"{REGISTRY}  url: http://{HIDDEN}@r", "kafka.yaml:3: schema_registry.url: carries a user or a password"),
        (f"{REGISTRY}  url: u:{HIDDEN}@r", "kafka.yaml:3: schema_registry.url: is no address, http(s)://HOST"),
        (f"{REGISTRY}  url: http://r:{HIDDEN}", "kafka.yaml:3: schema_registry.url: is no address, http(s)://HOST"),
        (f"{REGISTRY}  url: http://r?token={HIDDEN}", "kafka.yaml:3: schema_registry.url: is no address, http(s)://"),
        (f"{REGISTRY}  url: 'http://r {HIDDEN}'", "kafka.yaml:3: schema_registry.url: is no address, http(s)://HOST"),
        (
            f"{REGISTRY}  url: 'http://'",
            "kafka.yaml:3: schema_registry.url: is no address, http(s)://HOST:PORT[/PATH].",
        ),
        (f"{REGISTRY}  url: ''", "kafka.yaml:3: schema_registry.url: String should have at least 1 character"),
        (f"{REGISTRY}  url: [{HIDDEN}]", "kafka.yaml:3: schema_registry.url: Input should be a valid string"),
        (
            f"{REGISTRY}  url: http://r\n  username: u\n  password: {HIDDEN}",
            "kafka.yaml:5: schema_registry.password: is given by reference: {env: NAME}",
        ),
        (
            f"{REGISTRY}  url: http://r\n  token: {{env: '{HIDDEN}!'}}",
            "kafka.yaml:4: schema_registry.token: is given by reference: {env: NAME}",
        ),
        (
            f"{REGISTRY}  url: http://r\n  username: {{{HIDDEN}}}",
            "kafka.yaml:4: schema_registry.username: is given as plain text or by reference",
        ),
        (
            f"{REGISTRY}  url: http://r\n  sasl_password: {HIDDEN}",
            "kafka.yaml:4: schema_registry.sasl_password: this key is not known here. Known are: url, username,",
        ),
        (f"{REGISTRY}  url: http://r\n  username: u", "kafka.yaml:2: schema_registry: a login needs password too."),
        (f"{REGISTRY}  url: http://r\n  password: {{env: A}}", "schema_registry: a login needs username too."),
        (
            f"{REGISTRY}  url: http://r\n  username: u\n  password: {{env: A}}\n  token: {{env: A}}",
            "kafka.yaml:2: schema_registry: token has no use beside username and password: give one login.",
        ),
        (
            f"{REGISTRY}  url: http://r\n  ca_file: rsa.pem\n  client_certificate_file: rsa.pem",
            "kafka.yaml:2: schema_registry: http has no use for ca_file, client_certificate_file: with TLS, url begins",
        ),
        (
            f"{REGISTRY}  url: https://r\n  timeout_seconds: 301",
            "kafka.yaml:4: schema_registry.timeout_seconds: Input should be less than or equal to 300.",
        ),
        (
            f"{REGISTRY}  url: https://r\n  ca_file: absent.pem",
            "kafka.yaml: schema_registry.ca_file: absent.pem cannot be read: No such",
        ),
        (f"{REGISTRY}  url: https://r\n  ca_file: kafka.yaml", "kafka.yaml does not hold a certificate"),
        (f"{REGISTRY}  url: https://r\n  client_certificate_file: ca.pem", "ca.pem does not hold a key"),
        (
            f"{REGISTRY}  url: https://r\n  client_certificate_file: pbes2.pem",
            "schema_registry.client_certificate_file: the key in pbes2.pem has a password.",
        ),
        (f"{REGISTRY}  url: https://r\n  client_certificate_file: old.pem", "the key in old.pem has a password."),
    ],
)
def test_what_makes_no_sense_is_said_with_its_place_and_without_a_value(
    text: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rsa.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\n")
    (tmp_path / "pbes2.pem").write_text(f"-----BEGIN CERTIFICATE-----\n{PBES2_KEY}")
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "old.pem").write_text(
        "-----BEGIN CERTIFICATE-----\n-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n"
    )
    with pytest.raises(SettingsError) as error:
        load_connection(written(tmp_path, text))
    assert sentence in str(error.value)
    assert HIDDEN not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize(
    "name", ["sasl.password", "ssl.keystore.key", "sasl.jaas.config", "sasl.oauthbearer.client.secret", "SASL.Token"]
)
def test_a_property_that_looks_like_a_secret_is_refused(name: str, tmp_path: Path) -> None:
    text = f"bootstrap_servers: b:1\nproperties: {{{name}: {HIDDEN}}}"
    with pytest.raises(SettingsError, match=r"kafka\.yaml:2: properties: .* looks like a secret: use a ref") as error:
        load_connection(written(tmp_path, text))
    assert HIDDEN not in str(error.value)


def test_a_property_that_one_client_does_not_know_is_refused(tmp_path: Path) -> None:
    text = "bootstrap_servers: b:1\nproperties: {queued.min.messages: 7}"
    with pytest.raises(SettingsError, match=r"'queued\.min\.messages' is not for both clients; .*client\.id"):
        load_connection(written(tmp_path, text))


def test_librdkafka_knows_every_property() -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    values = {"client.dns.lookup": "use_all_dns_ips", "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"}
    connection = KafkaConnection(
        bootstrap_servers="127.0.0.1:1", properties={name: values.get(name, "2000") for name in PROPERTIES}
    )
    config = {**librdkafka_settings(connection, Credentials()), "log_level": 0}
    AdminClient(config)
    with pytest.raises(KafkaException, match="No such configuration property"):
        AdminClient({**config, "client.unknown": "1"})


def test_a_schema_registry(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "me.pem").write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN EC PRIVATE KEY-----\n")
    text = (
        f"{REGISTRY}  url: https://registry.example.com/apis/ccompat/v7\n  username: reader\n  password: {{env: A}}\n"
        f"  ca_file: {tmp_path}/ca.pem\n  client_certificate_file: {tmp_path}/me.pem\n  timeout_seconds: 20\n"
    )
    connection = load_connection(written(tmp_path, text))
    registry = connection.schema_registry
    assert registry is not None
    assert (registry.url, registry.timeout_seconds) == ("https://registry.example.com/apis/ccompat/v7", 20)
    # The clients of Kafka know nothing of it.
    plain = KafkaConnection(bootstrap_servers="b:1")
    assert librdkafka_settings(connection, Credentials()) == librdkafka_settings(plain, Credentials())
    assert spark_options(connection, Credentials(), shaded=False) == spark_options(plain, Credentials(), shaded=False)


def test_a_schema_registry_without_more_than_an_address(tmp_path: Path) -> None:
    registry = load_connection(written(tmp_path, f"{REGISTRY}  url: http://localhost:8081")).schema_registry
    assert registry is not None
    assert (registry.url, registry.timeout_seconds) == ("http://localhost:8081", 10)


def test_the_secrets_of_a_schema_registry_get_the_scope(tmp_path: Path) -> None:
    text = f"{REGISTRY}  url: https://r\n  token: {{databricks_secret: {{key: token}}}}\n"
    registry = load_connection(written(tmp_path, text), secret_scope="kafka").schema_registry  # noqa: S106 a name
    assert registry is not None
    assert str(registry.token) == "the secret token of the scope kafka"


def test_the_command_line_decides_where_the_brokers_are(tmp_path: Path) -> None:
    file = written(tmp_path, SASL)
    assert settings(warehouse="/w", kafka_config=file).kafka().bootstrap_servers == "broker-1:9092,broker-2:9092"
    chosen = settings(warehouse="/w", kafka_config=file, bootstrap_servers="other:9092").kafka()
    assert (chosen.bootstrap_servers, chosen.username) == ("other:9092", "reader")
    plain = settings(warehouse="/w", bootstrap_servers="other:9092").kafka()
    assert plain == KafkaConnection(bootstrap_servers="other:9092")


def test_it_loads_without_spark_and_kafka() -> None:
    program = (
        "import sys, lakehouse.kafka.connection, lakehouse.kafka.broker, lakehouse.config;"
        "sys.exit(any(name in sys.modules for name in ('pyspark', 'confluent_kafka')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
