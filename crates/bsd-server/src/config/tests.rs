use super::*;

#[test]
fn g44_milliseconds_with_a_unit_are_refused_in_words() {
    let said = |line: &str| parse(line).unwrap_err().text();
    for (line, words) in [
        ("-f 10ms", "the number of milliseconds has no unit: -f 10"),
        (
            "-f 1s",
            "a whole number of milliseconds is expected, such as -f 50",
        ),
        ("-f often", "a whole number of milliseconds is expected"),
    ] {
        assert!(said(line).contains(words), "{}", said(line));
    }
    assert_eq!(config("-f 10").sync, SyncPolicy::Interval(10));
}

fn parse(line: &str) -> Result<Config, Usage> {
    let words = std::iter::once("bsd-server").chain(line.split_whitespace());
    Config::parse(words.collect::<Vec<_>>())
}

fn config(line: &str) -> Config {
    parse(line).unwrap_or_else(|usage| panic!("`{line}`: {}", usage.text()))
}

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp {
        host: host.into(),
        port: Port::Number(port),
        layers: Layers::NONE,
    }
}

#[test]
fn no_flag_at_all_is_durable_on_loopback() {
    let config = config("");
    assert_eq!(config.dir, Some("bsd-data".into()));
    assert_eq!(config.sync, SyncPolicy::Always);
    assert_eq!(config.segment_size, 67_108_864);
    assert_eq!(config.job_size_max, 65_535);
    assert_eq!(config.listen, [tcp("127.0.0.1", 11300)]);
    assert!(!config.listen_is_explicit);
    assert_eq!((config.memory_max, config.connections_max), (None, None));
    assert_eq!((config.user, config.verbosity), (None, 0));
}

#[test]
fn the_extended_commands_are_there_unless_they_are_switched_off() {
    assert_eq!(config("").protocol, Protocol::Extended);
    assert_eq!(config("--protocol extended").protocol, Protocol::Extended);
    let line = "--protocol extended --protocol beanstalkd";
    assert_eq!(config(line).protocol, Protocol::Beanstalkd);
    assert!(parse("--protocol redis").is_err());
    let unit = Config::parse(["beanstalkd"]).unwrap();
    assert_eq!(unit.protocol, Protocol::Extended);
}

#[test]
fn beanstalkds_log_is_imported_only_when_asked_for() {
    assert!(!config("-b d").import);
    assert!(config("-b d --import").import);
    assert!(parse("--memory --import").is_err());
}

#[test]
fn an_archive_is_compressed_and_encrypted_only_when_asked_for() {
    let archive = |line: &str| {
        config(&format!("--archive file:///a {line}"))
            .archive
            .unwrap()
    };
    let plain = archive("");
    assert_eq!(plain.compression, None);
    assert!(plain.keys.is_empty() && plain.old_keys.is_empty());
    assert_eq!(archive("--archive-compress").compression, Some(3));
    assert_eq!(archive("--archive-compress 19").compression, Some(19));
    assert_eq!(archive("--archive-compress off").compression, None);
    for wrong in ["0", "20", "-1", "on"] {
        let line = format!("--archive file:///a --archive-compress={wrong}");
        assert!(parse(&line).is_err(), "{wrong}");
    }
    let keys =
        archive("--archive-key a --archive-key b --archive-key-command c --archive-old-key d");
    let file = |name: &str| KeySource::File(name.into());
    let command = KeySource::Command("c".to_owned());
    assert_eq!(keys.keys, [file("a"), file("b"), command]);
    assert_eq!(keys.old_keys, [file("d")]);
    for alone in [
        "--archive-compress",
        "--archive-key a",
        "--archive-old-key a",
    ] {
        assert!(parse(alone).is_err(), "{alone}");
    }
}

#[test]
fn a_log_is_archived_at_one_address_or_at_two() {
    for (line, is_followed) in [
        ("--archive file:///a --archive s3://b/p", false),
        ("--follow file:///a --archive s3://b/p", true),
        ("--archive s3://b/p --follow file:///a", true),
    ] {
        let archive = config(line).archive.unwrap();
        let urls: Vec<_> = archive.urls().collect();
        assert_eq!(urls, ["file:///a", "s3://b/p"], "{line}");
        assert_eq!(archive.is_followed, is_followed, "{line}");
    }
    let one = config("--archive file:///a").archive.unwrap();
    assert_eq!((one.urls().count(), one.second), (1, None));
    for (wrong, why) in [
        ("--archive file:///a --archive file:///a", "given twice"),
        ("--archive file:///a --archive file:///a/", "given twice"),
        ("--follow s3://b/p --archive s3://b/p", "given twice"),
        (
            "--archive file:///a --archive file:///b --archive file:///c",
            "two archives at most",
        ),
        (
            "--follow file:///a --archive file:///b --archive file:///c",
            "two archives at most",
        ),
    ] {
        let error = parse(wrong).unwrap_err().text();
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn an_archive_is_written_only_when_asked_for() {
    assert_eq!(config("").archive, None);
    let archive = config("--archive s3://b/p").archive.unwrap();
    assert_eq!(archive.url, "s3://b/p");
    assert_eq!(archive.interval, Duration::from_secs(1));
    assert_eq!(archive.hold_max, 1 << 30);
    assert_eq!(archive.fine, Some(Duration::from_secs(3600)));
    for (text, fine) in [("24h", Some(24 * 3600)), ("90s", Some(90)), ("off", None)] {
        let archive = config(&format!("--archive file:///a --archive-fine {text}")).archive;
        assert_eq!(archive.unwrap().fine, fine.map(Duration::from_secs));
    }
    for text in ["0h", "h", "1d", "", "1", "-1h"] {
        assert!(parse(&format!("--archive file:///a --archive-fine={text}")).is_err());
    }
    let line = "--archive file:///a --archive-interval 50 --archive-hold-max 2m";
    let archive = config(line).archive.unwrap();
    assert_eq!(archive.interval, Duration::from_millis(50));
    assert_eq!(archive.hold_max, 2 << 20);
    assert!(!archive.restore_if_empty);
    let refilled = config("--archive file:///a --restore-if-empty").archive;
    assert!(refilled.unwrap().restore_if_empty);
    assert!(parse("--restore-if-empty").is_err());
    assert!(parse("--archive file:///a --restore-if-empty --import").is_err());
    assert!(parse("--follow file:///a --archive file:///b --restore-if-empty").is_err());
    assert!(!archive.is_followed);
    assert!(parse("--memory --archive file:///a").is_err());
    let archive = config("--follow file:///a --archive-interval 50")
        .archive
        .unwrap();
    assert!(archive.is_followed && archive.url == "file:///a");
    for line in [
        "--memory --follow file:///a",
        "--import --follow file:///a",
        "--archive file:///a --follow file:///a",
        "--archive-interval 50",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn a_member_of_a_cluster_archives_and_neither_follows_an_archive_nor_is_restored_by_itself() {
    let cluster = "--cluster 127.0.0.1:12300";
    let archive = config(&format!(
        "{cluster} --archive file:///a --archive-lag-max 30s"
    ))
    .archive;
    assert!(archive.is_some_and(|archive| !archive.is_followed));
    for (flags, said) in [
        ("--follow file:///a", "start a standby elsewhere"),
        ("--archive file:///a --restore-if-empty", "restore by hand"),
    ] {
        let refused = parse(&format!("{cluster} {flags}")).unwrap_err();
        assert!(refused.text().contains(said), "{}", refused.text());
    }
}

#[test]
fn under_beanstalkds_name_what_is_not_said_is_as_beanstalkd_has_it() {
    let parse = |line: &str| Config::parse(line.split_whitespace()).unwrap();
    let none = parse("/usr/bin/beanstalkd -f 50 -s 1m -p 11400");
    assert_eq!((none.dir, none.import), (None, false));
    assert_eq!(none.listen, [tcp("0.0.0.0", 11400)]);

    let kept = parse("beanstalkd -l 10.0.0.1 -p 77 -b /var/lib/beanstalkd -l ::1");
    assert_eq!(kept.dir, Some("/var/lib/beanstalkd".into()));
    assert!(kept.import);
    assert_eq!(kept.sync, SyncPolicy::Always);
    assert_eq!(kept.listen, [tcp("::1", 77)]);
    let files = "--tls-cert c --tls-key k";
    let listeners = |flags: &str| parse(&format!("beanstalkd {flags} {files}")).listen;
    let both = listeners("-l 10.0.0.1 -l tls:0.0.0.0:1 -l 127.0.0.1 -l tls:10.0.0.1:2");
    let layers = |address: &Address| address.layers().tls;
    assert_eq!(
        both.iter().map(layers).collect::<Vec<_>>(),
        [false, true, true]
    );
    assert_eq!(both[0], tcp("127.0.0.1", 11300));
    assert_eq!(
        listeners("-l tls:0.0.0.0:1").len(),
        1,
        "without -l there is no listener without TLS"
    );

    let other = parse("/usr/bin/beanstalkd-like");
    assert_eq!(other.dir, Some("bsd-data".into()));
    assert!(Config::parse(["beanstalkd", "--nonsense"]).is_err());
}

#[test]
fn g47_under_beanstalkds_name_the_flags_of_an_operator_follow_the_directory_of_the_unit() {
    let dir = |line: &str| Config::parse(line.split_whitespace()).map(|config| config.dir);
    let unit = "beanstalkd -b /var/lib/beanstalkd -l 127.0.0.1 -p 11300";
    let kept = Some("/var/lib/beanstalkd".into());
    assert_eq!(dir(&format!("{unit} -z 524280")).unwrap(), kept);
    assert_eq!(
        dir(&format!("{unit} -b /srv/q")).unwrap(),
        Some("/srv/q".into())
    );
    assert_eq!(dir(&format!("{unit} --memory")).unwrap(), None);
    assert_eq!(
        dir("beanstalkd --memory -b /srv/q").unwrap(),
        Some("/srv/q".into())
    );
    assert!(dir("bsd-server -b /srv/q --memory").is_err());
}

#[test]
fn a_value_may_be_glued_to_its_letter_or_stand_apart() {
    for line in [
        "-p1234 -VVV -z10 -f7 -b/data",
        "-p 1234 -V -VV -z 10 -f 7 -b /data",
    ] {
        let config = config(line);
        assert_eq!(config.listen, [tcp("127.0.0.1", 1234)], "{line}");
        assert_eq!(config.verbosity, 3, "{line}");
        assert_eq!(config.job_size_max, 10, "{line}");
        assert_eq!(config.sync, SyncPolicy::Interval(7), "{line}");
        assert_eq!(config.dir, Some("/data".into()), "{line}");
    }
}

#[test]
fn each_flag_means_what_it_says() {
    type Check = fn(&Config) -> bool;
    let table: &[(&str, Check)] = &[
        ("-f0", |c| c.sync == SyncPolicy::Always),
        ("-f 50", |c| c.sync == SyncPolicy::Interval(50)),
        ("-F", |c| c.sync == SyncPolicy::Never),
        ("--memory", |c| c.dir.is_none()),
        ("--memory -z 5 -l ::1", |c| {
            c.dir.is_none() && c.job_size_max == 5
        }),
        ("-s 65537", |c| c.segment_size == 65_537),
        ("-s 1m", |c| c.segment_size == 1 << 20),
        ("-z 1g", |c| {
            c.job_size_max == 1 << 30 && c.warnings.is_empty()
        }),
        ("--dead-after 0", |c| c.probing == Probing::default()),
        ("", |c| {
            let seconds = |it: Option<Duration>| it.map(|it| it.as_secs());
            (seconds(c.probing.after), seconds(c.probing.untaken)) == (Some(60), Some(600))
        }),
        ("--dead-after 100000 --idle-output 0", |c| {
            c.probing.after == Some(Duration::from_secs(32_767)) && c.probing.untaken.is_none()
        }),
        ("-z 0", |c| c.job_size_max == 0),
        ("-u no_one", |c| c.user.as_deref() == Some("no_one")),
        ("-c -n", |c| c.dir.is_some()),
        ("--max-memory 2G", |c| c.memory_max == Some(2 << 30)),
        ("--max-memory 512k", |c| c.memory_max == Some(512 << 10)),
        ("--max-connections 9", |c| c.connections_max == Some(9)),
        ("--idle-output 2", |c| {
            c.idle_output == Some(Duration::from_secs(120))
        }),
        ("--idle-output 0", |c| c.idle_output.is_none()),
        ("-p 0", |c| c.listen == [tcp("127.0.0.1", 0)]),
    ];
    for (line, check) in table {
        assert!(check(&config(line)), "{line}: {:?}", config(line));
    }
}

#[test]
fn listening_addresses_add_up_and_take_the_port_where_they_name_none() {
    let config = config("-l 10.0.0.1 -p 77 -l unix:/run/q.sock -l [::1]:78");
    let unix = Address::Unix {
        path: "/run/q.sock".into(),
        mode: None,
    };
    assert_eq!(config.listen, [tcp("10.0.0.1", 77), unix, tcp("::1", 78)]);
    assert!(config.listen_is_explicit);
}

#[test]
fn f44_a_segment_size_out_of_range_is_taken_as_far_as_it_can_be_and_said() {
    for (line, size) in [
        ("-s 0", 65_536),
        ("-s 601", 65_536),
        ("-s 65535", 65_536),
        ("-s 3000000000", 2_147_483_648),
        ("-s 3g", 2_147_483_648),
    ] {
        let config = config(line);
        assert_eq!(config.segment_size, size, "{line}");
        let [warning] = &config.warnings[..] else {
            panic!("{line}: {:?}", config.warnings);
        };
        assert!(warning.contains(&size.to_string()), "{line}: {warning}");
    }
    for line in ["", "-s 65536", "-s 2g", "-s 100000"] {
        assert!(config(line).warnings.is_empty(), "{line}");
    }
}

#[test]
fn f45_of_a_flag_that_is_given_twice_the_last_one_counts() {
    type Check = fn(&Config) -> bool;
    let table: &[(&str, Check)] = &[
        ("-z 10 -z 20", |c| c.job_size_max == 20),
        ("-b X -b Y", |c| c.dir == Some("Y".into())),
        ("-n -c -n", |c| c.dir.is_some()),
        ("-c -c", |c| c.dir.is_some()),
        ("-F -f 5", |c| c.sync == SyncPolicy::Interval(5)),
        ("-f 5 -F", |c| c.sync == SyncPolicy::Never),
        ("-f 5 -F -f 0", |c| c.sync == SyncPolicy::Always),
        ("-F -F", |c| c.sync == SyncPolicy::Never),
        ("-f 1 -f 2", |c| c.sync == SyncPolicy::Interval(2)),
        ("-s 64k -s 1m", |c| {
            c.segment_size == 1 << 20 && c.warnings.is_empty()
        }),
        ("-p 1 -p 2", |c| c.listen == [tcp("127.0.0.1", 2)]),
        ("-u a -u b", |c| c.user.as_deref() == Some("b")),
        ("--memory --memory", |c| c.dir.is_none()),
        ("--import --import", |c| c.import),
        ("--max-memory 1m --max-memory 256k", |c| {
            c.memory_max == Some(MEMORY_MIN)
        }),
        ("--max-connections 1 --max-connections 2", |c| {
            c.connections_max == Some(2)
        }),
        ("-V -V", |c| c.verbosity == 2),
    ];
    for (line, check) in table {
        assert!(check(&config(line)), "{line}: {:?}", config(line));
    }
}

#[test]
fn f45_a_port_may_be_the_name_of_a_service() {
    let named = |host: &str| Address::Tcp {
        host: host.into(),
        port: Port::Service("http-alt".into()),
        layers: Layers::NONE,
    };
    assert_eq!(config("-p http-alt").listen, [named("127.0.0.1")]);
    assert_eq!(config("-l ::1 -p http-alt").listen, [named("::1")]);
    assert_eq!(config("-l [::1]:http-alt").listen, [named("::1")]);
}

#[test]
fn a_job_size_past_the_bound_is_lowered_with_a_warning() {
    let config = config("-z 1073741825");
    assert_eq!(config.job_size_max, 1_073_741_824);
    assert_eq!(config.warnings.len(), 1);
}

#[test]
fn wrong_usage_is_told_and_exits_5() {
    let table = [
        ("--memory -b /data", "cannot be used with"),
        ("--memory -f 0", "cannot be used with"),
        ("--memory -F", "cannot be used with"),
        ("--memory -s 1m", "cannot be used with"),
        ("-s x", "suffixes"),
        ("-p 65536", "65536"),
        ("-p a/b", "is not a port"),
        ("-l unix:q,mode=9", "octal"),
        ("-p", "a value is required"),
        ("-z ten", "suffixes"),
        ("-z -1", "unexpected argument"),
        ("--max-memory 5t", "suffixes k, m and g"),
        ("--max-memory 0", "at least 256k are needed"),
        ("--max-memory 1", "at least 256k are needed"),
        ("--max-memory 262143", "at least 256k are needed"),
        ("--max-memory 99999999999g", "too large"),
        ("--max-connections 0", "0 is not in"),
        ("-l unix:", "no path"),
        ("-l host:po_rt", "port"),
        ("--nonsense", "unexpected argument"),
        ("stray", "unexpected argument"),
    ];
    for (line, expected) in table {
        let usage = parse(line).expect_err(line);
        assert_eq!(usage.exit_code(), exit_code(ErrorClass::Usage), "{line}");
        assert!(usage.text().contains(expected), "{line}: {}", usage.text());
    }
}

#[test]
fn help_and_version_are_no_mistakes() {
    let help = parse("-h").expect_err("-h prints");
    assert_eq!(help.exit_code(), EXIT_OK);
    assert!(help.text().contains("Exit codes:"), "{}", help.text());
    let version = parse("-v").expect_err("-v prints");
    assert_eq!(version.exit_code(), EXIT_OK);
    assert_eq!(version.text(), "bsd-server 1.0.0-rc.1\n");
}

#[test]
fn sizes_are_decimal_with_one_suffix() {
    assert_eq!(parse_size("0"), Ok(0));
    assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
    assert_eq!(parse_size("3K"), Ok(3072));
    for wrong in [
        "",
        "k",
        "1kk",
        "+1",
        "-1",
        "1.5m",
        "0x10",
        "1 k",
        "18446744073709551616",
    ] {
        assert!(parse_size(wrong).is_err(), "{wrong}");
    }
}
