int cli_fio(int argc, char **argv); int cli_fio(int argc, char **argv){(void)argc;(void)argv;return 1;}
