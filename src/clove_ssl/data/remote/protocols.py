"""What the protocols of URLs need, said when a storage cannot be opened."""

from __future__ import annotations

_DRIVERS = {
    **dict.fromkeys(("http", "https"), "aiohttp requests"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
    "s3": "s3fs",
    "smb": "smbprotocol",
    "hdfs": "pyarrow",
}
_NEEDS = {
    **dict.fromkeys(("http", "https"), "a server that answers, with https://HOST/FOLDER/a.tar"),
    **dict.fromkeys(
        ("gs", "gcs"),
        "credentials (gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS), "
        "or FSSPEC_GS_TOKEN=anon for public data",
    ),
    **dict.fromkeys(
        ("az", "abfs"), "AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or a SAS token"
    ),
    **dict.fromkeys(
        ("sftp", "ssh", "smb", "ftp"),
        "a server that answers, with {protocol}://USER:PASSWORD@HOST:PORT/FOLDER/a.tar",
    ),
    **dict.fromkeys(
        ("zip", "tar", "libarchive"),
        "the archive that a shard is in, as in {protocol}://a.tar::s3://BUCKET/archive; better "
        "take the shards out of it",
    ),
    **dict.fromkeys(
        ("simplecache", "filecache", "blockcache"),
        "a URL behind it, as in {protocol}::s3://B/a.tar",
    ),
    "s3": "credentials (aws configure, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), "
    "FSSPEC_S3_ENDPOINT_URL for storage of others than AWS, or FSSPEC_S3_ANON=true for public data",
    "hdfs": "Java and Hadoop (JAVA_HOME, HADOOP_HOME, CLASSPATH), with hdfs://HOST:PORT/FOLDER/a.tar",
    "webhdfs": "a server that answers, with webhdfs://HOST:PORT/FOLDER/a.tar",
    "reference": "its file of references: FSSPEC_REFERENCE_FO=references.json",
    "github": "the repository, as in github://OWNER:REPOSITORY@BRANCH/FOLDER/a.tar",
    "jupyter": "the address of the server: FSSPEC_JUPYTER_URL=http://HOST:8888/?token=TOKEN",
    "dbfs": "FSSPEC_DBFS_INSTANCE=HOST and FSSPEC_DBFS_TOKEN=TOKEN",
}


def protocol_of(url: str) -> str:
    """The first word of a URL, such as ``s3``."""
    return url.partition("://")[0].partition("::")[0].lower()


def driver_of(url: str) -> str | None:
    """The packages that read such a URL, where they are known."""
    return _DRIVERS.get(protocol_of(url))


def needs_of(url: str) -> str:
    """A sentence with what such a URL needs."""
    protocol = protocol_of(url)
    known = _NEEDS.get(protocol)
    if known is None:
        option = f"FSSPEC_{protocol.upper()}_OPTION=VALUE"
        return f"Options of {protocol} are given in the environment: {option}."
    return f"{protocol} needs {known.format(protocol=protocol)}."
